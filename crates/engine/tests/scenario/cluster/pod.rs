//! The `pod` command.

use quorate_engine::basics::{Labels, Time};
use quorate_engine::facts::{Input, Link, Owner, Phase, Pod, Probe, WorkloadSource};

use super::{Cluster, LWS, key, parse_owner};
use crate::plain;
use crate::scenario::words::{self, Words};

impl Cluster {
    pub(super) fn pod(&mut self, words: &mut Words) -> Result<(), String> {
        let name = key(&words.next()?);
        let version = self.next_version();
        let known = self.pods.get(&name).filter(|_| !words.flag("new"));
        let fresh = || plain::pod(name.clone(), format!("{}-{}", name.name, version.0).into(), version);
        let mut pod = known.cloned().unwrap_or_else(fresh);
        pod.version = version;
        self.describe(&mut pod, words)?;
        let labels = words.labels();
        let unlabelled = words.rest();
        let is_kept = |key: &str| !unlabelled.iter().any(|gone| gone.strip_suffix('-') == Some(key));
        let all = pod.labels.iter().chain(labels.iter().map(|(key, value)| (&**key, &**value)));
        pod.labels = Labels::new(all.filter(|(key, _)| is_kept(key)).collect::<Vec<_>>());
        self.pods.insert(name, pod.clone());
        self.apply(Input::Pod(pod));
        Ok(())
    }

    /// Applies the arguments of a `pod` command other than labels.
    fn describe(&mut self, pod: &mut Pod, words: &mut Words) -> Result<(), String> {
        let phases = [
            ("pending", Phase::Pending),
            ("running", Phase::Running),
            ("succeeded", Phase::Succeeded),
            ("failed", Phase::Failed),
            ("unknown", Phase::Unknown),
        ];
        let was_ready = pod.ready;
        for (word, phase) in phases {
            if words.flag(word) {
                pod.phase = phase;
                pod.ready &= phase == Phase::Running;
            }
        }
        for (word, ready) in [("ready", true), ("unready", false)] {
            if words.flag(word) {
                pod.phase = Phase::Running;
                pod.ready = ready;
            }
        }
        if was_ready != pod.ready || pod.ready_since.is_none() {
            pod.ready_since = Some(self.now);
        }
        pod.terminating |= words.flag("terminating");
        pod.consistent = !words.flag("updating");
        pod.waives = words.flag("waives");
        if let Some(node) = words.take("node") {
            pod.node = Some(node.into());
        }
        if let Some(size) = words.number("size")? {
            pod.group_size = Some(size);
        }
        if let Some(group) = words.take("lws") {
            let (set, index) = group.split_once('/').ok_or("lws is set/index")?;
            let keys = ["name", "group-index"].map(|key| format!("{LWS}/{key}"));
            let more = [(&*keys[0], set), (&*keys[1], index)];
            pod.labels = Labels::new(pod.labels.iter().chain(more).collect::<Vec<_>>());
        }
        if let Some(link) = words.take("in") {
            pod.link = Some(Box::new(parse_link(&link)?));
        }
        for (word, controller) in [("owner", true), ("also-owner", false)] {
            while let Some(owner) = words.take(word) {
                let owner = Owner { controller, ..parse_owner(&owner)? };
                pod.owners = pod.owners.iter().cloned().chain([owner]).collect();
            }
        }
        if let Some(says) = words.take("probe") {
            let now = self.now;
            let since = |was: Option<bool>, is| match &pod.probe {
                Some(probe) if was == is => probe.since,
                _ => Some(now),
            };
            let was = pod.probe.as_ref().and_then(|probe| probe.disruptable);
            let disruptable = match says.as_str() {
                "yes" => Some(true),
                "no" => Some(false),
                "silent" | "malformed" => None,
                other => return Err(format!("what is probe={other}?")),
            };
            let back = |text: Option<String>| -> Result<Option<Time>, String> {
                text.map(|ago| Ok(Time(now.0 - words::span(&ago)?.as_millis() as i64))).transpose()
            };
            pod.probe = Some(Box::new(Probe {
                malformed: (says == "malformed").then(|| "httpGet.port: 99999 is above 65535".into()),
                disruptable,
                message: words.take("saying").map(Into::into),
                probed: if words.flag("unprobed") { None } else { back(words.take("probed"))?.or(Some(now)) },
                since: since(was, disruptable),
                started: back(words.take("started"))?,
            }));
        }
        Ok(())
    }
}

/// `podgroup:name`, `workload/group/replica`, or `upstream:workload/group/replica`.
fn parse_link(text: &str) -> Result<Link, String> {
    if let Some(name) = text.strip_prefix("podgroup:") {
        return Ok(Link::PodGroup(name.into()));
    }
    let (source, text) = match text.strip_prefix("upstream:") {
        Some(text) => (WorkloadSource::Upstream, text),
        None => (WorkloadSource::Own, text),
    };
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [workload, group] => Ok((*workload, *group, "")),
        [workload, group, replica] => Ok((*workload, *group, *replica)),
        _ => Err(format!("no group: {text}")),
    }
    .map(|(workload, group, replica)| Link::Replica {
        source,
        workload: workload.into(),
        group: group.into(),
        replica: replica.into(),
    })
}
