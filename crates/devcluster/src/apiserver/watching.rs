//! The watch verb: a stream of changes, pulled from the history of a table.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::api::{Api, Reply, metadata_only, request_info};
use super::failure::{Failure, FieldError, Outcome};
use super::faults::{End, WatchFault};
use super::read::{Selection, parse_version};
use super::request::{Call, Form};
use super::store::{Change, ChangeKind, StoredObject};
use super::table;

/// Maximum number of changes in one chunk.
const BATCH: usize = 512;
/// Time between the last bookmark and the end of a watch.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Duration of a watch if the client does not set one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// Interval at which a watch from a later version looks whether the store has reached it.
const REVISION_POLL: Duration = Duration::from_millis(100);

struct Watching {
    api: Arc<Api>,
    call: Call,
    selection: Selection,
    cursor: u64,
    changed: watch::Receiver<u64>,
    faults_changed: watch::Receiver<u64>,
    faults_mark: u64,
    /// Data to send before the first change.
    initial: Option<BytesMut>,
    bookmarks: bool,
    next_bookmark: Instant,
    /// Time of an additional bookmark shortly before the end, so that the next watch can continue from there.
    last_bookmark: Option<Instant>,
    deadline: Instant,
    table_head_sent: bool,
    over: bool,
}

/// The start of a watch, from its parameters.
struct Start {
    version: Option<u64>,
    initial_events: bool,
    end_mark: bool,
}

impl Start {
    fn of(call: &Call) -> Outcome<Self> {
        let query = &call.query;
        let version = match query.text("resourceVersion") {
            "" => None,
            text => Some(parse_version(text)?),
        };
        let send_initial_events = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        if send_initial_events.is_some() && query.text("resourceVersionMatch") != "NotOlderThan" {
            return Err(Failure::invalid(
                "meta.k8s.io",
                "ListOptions",
                "",
                &[FieldError::forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                )],
            ));
        }
        if send_initial_events.is_none() && !query.text("resourceVersionMatch").is_empty() {
            return Err(Failure::invalid(
                "meta.k8s.io",
                "ListOptions",
                "",
                &[FieldError::forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )],
            ));
        }
        let from_state = matches!(version, None | Some(0));
        Ok(Self {
            version,
            initial_events: send_initial_events.unwrap_or(from_state),
            end_mark: send_initial_events == Some(true),
        })
    }
}

impl Api {
    /// Waits until the store has reached the version that a watch begins after. As the real API server: after etcd was
    /// restored from an older snapshot, such a watch gets no answer, and then only what is newer than its version.
    pub(crate) async fn until_reached(&self, call: &Call) -> Outcome<()> {
        let version = match call.query.text("resourceVersion") {
            "" => return Ok(()),
            text => parse_version(text)?,
        };
        let timeout = call.query.number("timeoutSeconds")?.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let deadline = Instant::now() + timeout;
        while self.store.revision() < version && Instant::now() < deadline {
            tokio::time::sleep(REVISION_POLL.min(timeout)).await;
        }
        Ok(())
    }

    pub(crate) fn watch(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let selection = Selection::of(call)?;
        let start = Start::of(call)?;
        let table = &call.served.resource.table;
        // Subscribe before reading the state, so that no change in between is missed.
        let changed = self.store.subscribe(table);
        let timeout = call
            .query
            .number("timeoutSeconds")?
            .filter(|s| *s > 0)
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let now = Instant::now();
        let mut watching = Watching {
            api: self.clone(),
            call: call.clone(),
            selection,
            cursor: start.version.unwrap_or(0),
            changed,
            faults_changed: self.faults.subscribe(),
            faults_mark: self.faults.mark(),
            initial: None,
            bookmarks: call.query.flag("allowWatchBookmarks"),
            next_bookmark: now + self.options.bookmark_every,
            last_bookmark: timeout.checked_sub(LAST_BOOKMARK_BEFORE_END).map(|after| now + after),
            deadline: now + timeout,
            table_head_sent: false,
            over: false,
        };
        if start.initial_events || matches!(start.version, None | Some(0)) {
            watching.begin_with_state(&start);
        }
        let stream = futures::stream::unfold(watching, |mut watching| async move {
            watching.next().await.map(|chunk| (chunk, watching))
        });
        Ok(Reply::Watch(stream.boxed()))
    }
}

impl Watching {
    fn begin_with_state(&mut self, start: &Start) {
        let snapshot = self.api.store.list(&self.call.served.resource.table, &self.call.namespace);
        self.cursor = snapshot.revision;
        if !start.initial_events {
            return;
        }
        let mut chunk = BytesMut::new();
        for object in &snapshot.objects {
            if self.selection.matches(&object.value) {
                self.push_object(&mut chunk, "ADDED", object);
            }
        }
        if start.end_mark && self.bookmarks {
            self.push_bookmark(&mut chunk, true);
        }
        self.initial = Some(chunk).filter(|chunk| !chunk.is_empty());
    }

    /// The next chunk to send; `None` ends the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.over {
                return None;
            }
            self.changed.borrow_and_update();
            self.faults_changed.borrow_and_update();
            match self.api.faults.ended_since(self.faults_mark, &request_info(&self.call)) {
                Some(End::Close) => return None,
                Some(End::Expire) => return Some(self.expire("the watch was ended on demand")),
                None => {}
            }
            let fault = self.api.faults.on_watch(&request_info(&self.call));
            if fault != Some(WatchFault::Hold) {
                if let Some(chunk) = self.ready_chunk(fault) {
                    if let Some(WatchFault::Delay(by)) = fault {
                        tokio::time::sleep(by).await;
                    }
                    return Some(chunk);
                }
                if self.sends_bookmarks(fault) && Instant::now() >= self.bookmark_due() {
                    self.last_bookmark = self.last_bookmark.filter(|at| *at > Instant::now());
                    self.next_bookmark = Instant::now() + self.api.options.bookmark_every;
                    let mut chunk = BytesMut::new();
                    self.push_bookmark(&mut chunk, false);
                    return Some(chunk.freeze());
                }
            }
            let held = fault == Some(WatchFault::Hold);
            let bookmark_due = self.bookmark_due();
            tokio::select! {
                changed = self.changed.changed(), if !held => if changed.is_err() { return None },
                changed = self.faults_changed.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep_until(bookmark_due), if self.sends_bookmarks(fault) && !held => {}
                () = tokio::time::sleep_until(self.deadline) => return None,
            }
        }
    }

    fn sends_bookmarks(&self, fault: Option<WatchFault>) -> bool {
        self.bookmarks && fault != Some(WatchFault::NoBookmarks)
    }

    fn bookmark_due(&self) -> Instant {
        self.last_bookmark.map_or(self.next_bookmark, |last| last.min(self.next_bookmark))
    }

    /// The data that can be sent now.
    fn ready_chunk(&mut self, fault: Option<WatchFault>) -> Option<Bytes> {
        if let Some(initial) = self.initial.take() {
            return Some(initial.freeze());
        }
        loop {
            let table = &self.call.served.resource.table;
            let (changes, reached) = match self.api.store.changes_after(table, self.cursor, BATCH) {
                Ok(found) => found,
                Err(old) => {
                    let text = format!("too old resource version: {} ({})", self.cursor, old.floor);
                    return Some(self.expire(&text));
                }
            };
            self.cursor = reached;
            if changes.is_empty() {
                return None;
            }
            if fault == Some(WatchFault::Drop) {
                continue;
            }
            let mut chunk = BytesMut::new();
            for change in &changes {
                self.push_change(&mut chunk, change);
            }
            if !chunk.is_empty() {
                return Some(chunk.freeze());
            }
        }
    }

    fn push_change(&mut self, chunk: &mut BytesMut, change: &Change) {
        if !self.call.namespace.is_empty() && change.object.key.namespace != self.call.namespace {
            return;
        }
        let before = change.previous.as_ref().is_some_and(|p| self.selection.matches(&p.value));
        let after = change.kind != ChangeKind::Deleted && self.selection.matches(&change.object.value);
        match (before, after) {
            (false, false) => {}
            (false, true) => self.push_object(chunk, "ADDED", &change.object),
            (true, true) => self.push_object(chunk, "MODIFIED", &change.object),
            (true, false) if change.kind == ChangeKind::Deleted => {
                self.push_object(chunk, "DELETED", &change.object);
            }
            (true, false) => self.push_left(chunk, change),
        }
    }

    /// The object still exists but is no longer selected: the client gets a deletion with its last selected state.
    fn push_left(&mut self, chunk: &mut BytesMut, change: &Change) {
        let Some(previous) = &change.previous else { return };
        let mut value = previous.value.clone();
        super::object::set_meta(&mut value, "resourceVersion", change.revision.to_string());
        let value = self.call.served.present_value(value);
        let shown = self.shown(&value);
        push_event(chunk, "DELETED", shown.to_string().as_bytes());
    }

    fn push_object(&mut self, chunk: &mut BytesMut, kind: &str, object: &StoredObject) {
        if self.call.form == Form::Object {
            push_event(chunk, kind, &self.call.served.bytes(object));
        } else {
            let value = self.call.served.present(object);
            let shown = self.shown(&value);
            push_event(chunk, kind, shown.to_string().as_bytes());
        }
    }

    /// An object in the form that the client requested for this watch.
    fn shown(&mut self, value: &Value) -> Value {
        match self.call.form {
            Form::Object => value.clone(),
            Form::Metadata => metadata_only(value, "PartialObjectMetadata"),
            Form::Table => {
                let meta = json!({"resourceVersion": super::object::resource_version(value)});
                let mut shown = table::of_objects(
                    &self.call.served,
                    &[value],
                    &meta,
                    self.api.clock.now(),
                    &self.call.query,
                );
                // Only the first event has the column definitions.
                if std::mem::replace(&mut self.table_head_sent, true) {
                    shown["columnDefinitions"] = json!([]);
                }
                shown
            }
        }
    }

    fn push_bookmark(&mut self, chunk: &mut BytesMut, initial_end: bool) {
        let mut meta = json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if initial_end {
            meta["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.call.form {
            Form::Object => json!({
                "kind": self.call.served.resource.kind,
                "apiVersion": self.call.served.api_version(),
                "metadata": meta,
            }),
            Form::Metadata => metadata_only(&json!({"metadata": meta}), "PartialObjectMetadata"),
            Form::Table => {
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "columnDefinitions": [], "rows": []})
            }
        };
        push_event(chunk, "BOOKMARK", object.to_string().as_bytes());
    }

    /// The last event of a watch that cannot continue.
    fn expire(&mut self, why: &str) -> Bytes {
        self.over = true;
        let mut chunk = BytesMut::new();
        push_event(&mut chunk, "ERROR", Failure::expired(why).status().to_string().as_bytes());
        chunk.freeze()
    }
}

fn push_event(chunk: &mut BytesMut, kind: &str, object: &[u8]) {
    chunk.reserve(kind.len() + object.len() + 24);
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(kind.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(object);
    chunk.put_slice(b"}\n");
}
