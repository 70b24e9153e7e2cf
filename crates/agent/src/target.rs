//! The target of a probe.

use std::time::Duration;

use quorate_intake::probe::{Handler, Port, Probe};

use crate::pod_view::{ProbedContainer, RunningContainer};

/// One probe of one container, ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeRequest {
    pub(crate) target: ProbeTarget,
    /// Timeout of the probe.
    pub(crate) timeout: Duration,
}

/// Where a probe connects to, or which command it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeTarget {
    Http {
        https: bool,
        host: String,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
    },
    Tcp {
        host: String,
        port: u16,
    },
    Grpc {
        host: String,
        port: u16,
        service: String,
    },
    Exec {
        container: String,
        command: Vec<String>,
    },
    /// There is no target, for this reason.
    Unknown(String),
}

/// The kinds of probes, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Http,
    Tcp,
    Grpc,
    Exec,
}

/// The kind of a probe.
pub(crate) fn kind(probe: &Probe) -> Kind {
    match probe.handler {
        Handler::HttpGet { .. } => Kind::Http,
        Handler::TcpSocket { .. } => Kind::Tcp,
        Handler::Grpc { .. } => Kind::Grpc,
        Handler::Exec { .. } => Kind::Exec,
    }
}

/// Resolves a probe for one run of its container.
pub(crate) fn request(
    probe: &Probe,
    probed: &ProbedContainer,
    run: &RunningContainer,
    address: Option<&str>,
) -> ProbeRequest {
    let target = find(probe, probed, run, address).unwrap_or_else(ProbeTarget::Unknown);
    ProbeRequest { target, timeout: probe.timeout }
}

fn find(
    probe: &Probe,
    probed: &ProbedContainer,
    run: &RunningContainer,
    address: Option<&str>,
) -> Result<ProbeTarget, String> {
    let host = |given: &Option<String>| match (given, address) {
        (Some(host), _) => Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
        (None, Some(address)) => Ok(address.to_owned()),
        (None, None) => Err("the pod has no address yet".to_owned()),
    };
    Ok(match &probe.handler {
        Handler::HttpGet { path, port, host: given, https, headers } => ProbeTarget::Http {
            https: *https,
            host: host(given)?,
            port: number(port, probed)?,
            path: path.clone(),
            headers: headers.clone(),
        },
        Handler::TcpSocket { port, host: given } => {
            ProbeTarget::Tcp { host: host(given)?, port: number(port, probed)? }
        }
        Handler::Grpc { port, service } => {
            ProbeTarget::Grpc { host: host(&None)?, port: *port, service: service.clone() }
        }
        Handler::Exec { command } => {
            // The status has the runtime before the ID: containerd://, cri-o://.
            let id = run.id.split_once("://").map_or(run.id.as_str(), |(_, id)| id);
            ProbeTarget::Exec { container: id.to_owned(), command: command.clone() }
        }
    })
}

fn number(port: &Port, probed: &ProbedContainer) -> Result<u16, String> {
    match port {
        Port::Number(number) => Ok(*number),
        Port::Name(name) => match probed.ports.iter().find(|(known, _)| known == name) {
            Some((_, number)) => Ok(*number),
            None => Err(format!(
                "container {} has no port named {name}: name one or give its number",
                probed.container
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_view::ContainerState;
    use quorate_intake::probe;

    fn found(text: &str, address: Option<&str>) -> ProbeTarget {
        let probe = probe::parse("probe", text).unwrap();
        let run = RunningContainer { id: "containerd://abc".to_owned(), started: None };
        let probed = ProbedContainer {
            container: "main".to_owned(),
            probe: Ok(probe.clone()),
            ports: vec![("web".to_owned(), 8080)],
            runs: ContainerState::Running(run.clone()),
        };
        request(&probe, &probed, &run, address).target
    }

    #[test]
    fn probes_resolve_to_targets() {
        let pod = Some("10.0.0.1");
        let http = |host: &str, port| ProbeTarget::Http {
            https: false,
            host: host.to_owned(),
            port,
            path: "/".to_owned(),
            headers: Vec::new(),
        };
        let tcp = |host: &str, port| ProbeTarget::Tcp { host: host.to_owned(), port };
        let unknown = |why: &str| ProbeTarget::Unknown(why.to_owned());
        for (text, address, expected) in [
            (r#"{"httpGet":{"port":80}}"#, pod, http("10.0.0.1", 80)),
            (r#"{"httpGet":{"port":"web"}}"#, pod, http("10.0.0.1", 8080)),
            (r#"{"httpGet":{"port":80,"host":"db.example"}}"#, pod, http("db.example", 80)),
            (r#"{"httpGet":{"port":80,"host":"[fd00::1]"}}"#, None, http("fd00::1", 80)),
            (r#"{"tcpSocket":{"port":"web"}}"#, Some("fd00::2"), tcp("fd00::2", 8080)),
            (r#"{"tcpSocket":{"port":80}}"#, None, unknown("the pod has no address yet")),
            (
                r#"{"tcpSocket":{"port":"db"}}"#,
                pod,
                unknown("container main has no port named db: name one or give its number"),
            ),
            (
                r#"{"grpc":{"port":90,"service":"s"}}"#,
                pod,
                ProbeTarget::Grpc { host: "10.0.0.1".to_owned(), port: 90, service: "s".to_owned() },
            ),
            (
                r#"{"exec":{"command":["is-synced","--all"]}}"#,
                None,
                ProbeTarget::Exec {
                    container: "abc".to_owned(),
                    command: vec!["is-synced".to_owned(), "--all".to_owned()],
                },
            ),
        ] {
            assert_eq!(found(text, address), expected, "{text}");
        }
    }
}
