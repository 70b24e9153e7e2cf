//! What the answer depends on besides the objects: which servers run, and how they were started.

use quorate_server::view::{Servers, View};

use crate::started::flags;

/// Notes about the servers. `assumed`: the user says how they were started.
pub(super) fn about(view: &View, assumed: bool) -> Vec<String> {
    let readable = !view.unlisted().iter().any(|unlisted| unlisted.what.starts_with("leases."));
    of_servers(view.servers(), readable, assumed)
}

fn of_servers(servers: &Servers, readable: bool, assumed: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !readable {
        return notes;
    }
    if servers.count() == 0 {
        notes.push("no server is deciding: this is what one that starts now would decide".to_owned());
    }
    if let Some(settings) = servers.settings().filter(|_| !assumed)
        && let Some(flags) = flags(settings)
    {
        notes.push(format!("the servers run with {flags}"));
    }
    if servers.differ() {
        notes.push("the servers were started in different ways: the answer depends on which one the API server calls".to_owned());
    }
    notes
}
