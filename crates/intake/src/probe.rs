//! Disruption probes: what a pod's annotations declare.
//!
//! `quorate.dev/disruption-probe.<container>` holds a probe in the format of the Kubernetes probes, with the same
//! defaults and limits.

use std::time::Duration;

use quorate_api::names::DISRUPTION_PROBE_PREFIX;
use quorate_api::slim;
use serde_json::Value;

use crate::error::Problem;
use crate::field::{Field, one_of};
use crate::syntax;

/// A disruption probe of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The check that the probe runs.
    pub handler: Handler,
    /// Delay between the start of the container and the first probe.
    pub initial_delay: Duration,
    /// Time limit of one probe.
    pub timeout: Duration,
    /// Time between two probes.
    pub period: Duration,
    /// Number of successes in a row after which a failed probe counts as successful.
    pub success_threshold: u32,
    /// Number of failures in a row after which a successful probe counts as failed.
    pub failure_threshold: u32,
}

/// The check that a probe runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handler {
    /// An HTTP request; any status from 200 to 399 is a success.
    HttpGet {
        /// The path, with its query.
        path: String,
        /// The port.
        port: Port,
        /// The host, if it is not the pod.
        host: Option<String>,
        /// Use TLS; the certificate is not verified.
        https: bool,
        /// Headers to send.
        headers: Vec<(String, String)>,
    },
    /// A TCP connection; an open connection is a success.
    TcpSocket {
        /// The port.
        port: Port,
        /// The host, if it is not the pod.
        host: Option<String>,
    },
    /// The gRPC health service, version 1; SERVING is a success.
    Grpc {
        /// The port.
        port: u16,
        /// The service to check; the empty name means the whole server.
        service: String,
    },
    /// A command in the container; exit code 0 is a success.
    Exec {
        /// The command and its arguments. It does not run in a shell.
        command: Vec<String>,
    },
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// The port number.
    Number(u16),
    /// The name of the port in the container's spec.
    Name(String),
}

/// The container whose probe an annotation declares.
pub fn container(annotation: &str) -> Option<&str> {
    annotation.strip_prefix(DISRUPTION_PROBE_PREFIX)
}

/// The probes that a pod declares, by container: each probe, or its problems.
pub fn declared(pod: &slim::Pod) -> impl Iterator<Item = (&str, Result<Probe, Vec<Problem>>)> {
    pod.metadata.annotations.iter().flatten().filter_map(|(key, text)| {
        let name = container(key)?;
        let mut probe = parse(&path(key), text);
        if !stays(pod, name) {
            let message = "must be the name of one of the pod's containers";
            let problem = Problem::with(path(key), name, message);
            probe = match probe {
                Ok(_) => Err(vec![problem]),
                Err(found) => Err(found.into_iter().chain([problem]).collect()),
            };
        }
        Some((name, probe))
    })
}

/// Whether the pod has a container of this name that can be probed: a regular container or a sidecar. Other init
/// containers terminate, so they cannot be probed.
fn stays(pod: &slim::Pod, name: &str) -> bool {
    let sidecars = pod.spec.init_containers.iter().filter(|init| init.is_sidecar());
    pod.spec.containers.iter().chain(sidecars).any(|container| container.name == name)
}

/// All problems of a pod's probes.
pub fn problems(pod: &slim::Pod) -> Vec<Problem> {
    declared(pod).filter_map(|(_, probe)| probe.err()).flatten().collect()
}

fn path(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}

/// Reads a probe; `path` is the path of the annotation, for messages.
pub fn parse(path: &str, text: &str) -> Result<Probe, Vec<Problem>> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| vec![Problem::at(path, format!("is not JSON: {error}"))])?;
    let mut problems = Vec::new();
    let probe = read(&Field::new(path, &value), &mut problems);
    match probe {
        Some(probe) if problems.is_empty() => Ok(probe),
        _ => Err(problems),
    }
}

const HANDLERS: [&str; 4] = ["httpGet", "tcpSocket", "grpc", "exec"];
const NUMBERS: [&str; 5] =
    ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];

fn read(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Probe> {
    let known: Vec<&str> = HANDLERS.into_iter().chain(NUMBERS).collect();
    refuse_unknown(field, &known, problems);
    // As for the Kubernetes probes, 0 selects the default.
    let mut number = |name: &str, default: u32| match field.get(name) {
        Some(field) => match field.number(0, i32::MAX as u32, problems) {
            Some(0) | None => default,
            Some(n) => n,
        },
        None => default,
    };
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let initial_delay = seconds(number("initialDelaySeconds", 0));
    let timeout = seconds(number("timeoutSeconds", 1));
    let period = seconds(number("periodSeconds", 10));
    let success_threshold = number("successThreshold", 1);
    let failure_threshold = number("failureThreshold", 3);

    let handlers: Vec<(&str, Field<'_>)> =
        HANDLERS.iter().filter_map(|name| Some((*name, field.get(name)?))).collect();
    let handler = match handlers.as_slice() {
        [(name, handler)] => match *name {
            "httpGet" => http_get(handler, problems),
            "tcpSocket" => tcp_socket(handler, problems),
            "grpc" => grpc(handler, problems),
            _ => exec(handler, problems),
        },
        [] => {
            if field.value.is_object() {
                let message = format!("has no handler: set one of {}", one_of(&HANDLERS));
                problems.push(Problem::at(&field.path, message));
            }
            None
        }
        [(first, _), (second, _), ..] => {
            let message = format!("has two handlers, {first} and {second}: keep one of them");
            problems.push(Problem::at(&field.path, message));
            None
        }
    };
    Some(Probe { handler: handler?, initial_delay, timeout, period, success_threshold, failure_threshold })
}

/// Reports misspelt fields: the API server does not validate the content of annotations.
fn refuse_unknown(field: &Field<'_>, known: &[&str], problems: &mut Vec<Problem>) {
    for (name, member) in field.members(problems) {
        if !known.contains(&name) {
            problems.push(Problem::at(member.path, format!("is an unknown field: use {}", one_of(known))));
        }
    }
}

fn http_get(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Handler> {
    refuse_unknown(field, &["path", "port", "host", "scheme", "httpHeaders"], problems);
    let path = match field.get("path") {
        Some(path) => path.text(problems)?,
        None => "",
    };
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let https = match field.get("scheme") {
        Some(scheme) => scheme.word(&[("HTTP", false), ("HTTPS", true)], problems)?,
        None => false,
    };
    let mut headers = Vec::new();
    for header in field.get("httpHeaders").map(|list| list.items(problems)).unwrap_or_default() {
        let (name, value) = (header.get("name"), header.get("value"));
        let name = name.and_then(|name| name.text(problems)).unwrap_or_default();
        let value = value.and_then(|value| value.text(problems)).unwrap_or_default();
        if !syntax::is_header_name(name) {
            let path = format!("{}.name", header.path);
            problems.push(Problem::with(path, format!("{name:?}"), "must be the name of an HTTP header"));
        }
        if value.contains(['\r', '\n', '\0']) {
            let path = format!("{}.value", header.path);
            problems.push(Problem::at(path, "must be one line"));
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    let port = port(field, problems)?;
    Some(Handler::HttpGet { path, port, host: host(field, problems), https, headers })
}

fn tcp_socket(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Handler> {
    refuse_unknown(field, &["port", "host"], problems);
    let port = port(field, problems)?;
    Some(Handler::TcpSocket { port, host: host(field, problems) })
}

fn grpc(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Handler> {
    refuse_unknown(field, &["port", "service"], problems);
    let service = match field.get("service") {
        Some(service) => service.text(problems)?,
        None => "",
    };
    let Some(port) = field.get("port") else {
        problems.push(no_port(field));
        return None;
    };
    let port = port.number(1, 65535, problems)?;
    Some(Handler::Grpc { port: u16::try_from(port).ok()?, service: service.to_owned() })
}

fn exec(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Handler> {
    refuse_unknown(field, &["command"], problems);
    let words = field.get("command").map(|list| list.items(problems)).unwrap_or_default();
    let command: Vec<String> =
        words.iter().filter_map(|word| word.text(problems)).map(str::to_owned).collect();
    if command.is_empty() {
        let path = format!("{}.command", field.path);
        problems.push(Problem::at(path, "must name a command"));
        return None;
    }
    Some(Handler::Exec { command })
}

fn host(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<String> {
    field.get("host")?.text(problems).filter(|host| !host.is_empty()).map(str::to_owned)
}

fn no_port(field: &Field<'_>) -> Problem {
    Problem::at(format!("{}.port", field.path), "is missing: set the port to probe")
}

fn port(field: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Port> {
    let Some(port) = field.get("port") else {
        problems.push(no_port(field));
        return None;
    };
    match port.value {
        Value::String(name) if syntax::is_port_name(name) => Some(Port::Name(name.clone())),
        Value::Number(_) => {
            let number = port.number(1, 65535, problems)?;
            u16::try_from(number).ok().map(Port::Number)
        }
        _ => {
            problems.push(port.problem("must be a number from 1 to 65535, or the name of a port"));
            None
        }
    }
}
