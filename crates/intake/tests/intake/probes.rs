//! Disruption probes as annotations declare them.

use std::time::Duration;

use quorate_intake::probe::{self, Handler, Port, Probe};
use serde_json::json;

use crate::data::{load, pod, with};

fn parse(text: &str) -> Result<Probe, Vec<String>> {
    probe::parse("p", text).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn the_probe_of_the_proposal_is_read() {
    let text = r#"{
        "failureThreshold": 5,
        "httpGet": {"path": "/disruptable", "port": 8484, "scheme": "HTTP"},
        "initialDelaySeconds": 60,
        "periodSeconds": 30,
        "successThreshold": 2,
        "timeoutSeconds": 4
    }"#;
    let expected = Probe {
        handler: Handler::HttpGet {
            path: "/disruptable".to_owned(),
            port: Port::Number(8484),
            host: None,
            https: false,
            headers: Vec::new(),
        },
        initial_delay: Duration::from_secs(60),
        timeout: Duration::from_secs(4),
        period: Duration::from_secs(30),
        success_threshold: 2,
        failure_threshold: 5,
    };
    assert_eq!(parse(text), Ok(expected));
}

#[test]
fn defaults_are_those_of_kubernetes() {
    for text in [
        r#"{"tcpSocket":{"port":"db"}}"#,
        r#"{"tcpSocket":{"port":"db","host":""},"timeoutSeconds":0,"periodSeconds":0,"successThreshold":0,"failureThreshold":0}"#,
        r#"{"tcpSocket":{"port":"db"},"httpGet":null,"periodSeconds":null}"#,
    ] {
        let expected = Probe {
            handler: Handler::TcpSocket { port: Port::Name("db".to_owned()), host: None },
            initial_delay: Duration::ZERO,
            timeout: Duration::from_secs(1),
            period: Duration::from_secs(10),
            success_threshold: 1,
            failure_threshold: 3,
        };
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
    let handler = |text: &str| parse(text).unwrap().handler;
    assert_eq!(handler(r#"{"grpc":{"port":9000}}"#), Handler::Grpc { port: 9000, service: String::new() });
    assert_eq!(
        handler(r#"{"exec":{"command":["sh","-c","true"]}}"#),
        Handler::Exec { command: ["sh", "-c", "true"].map(str::to_owned).to_vec() }
    );
    let http = r#"{"httpGet":{"port":"web","scheme":"HTTPS","host":"h","httpHeaders":[{"name":"X-A","value":"1"}]}}"#;
    let expected = Handler::HttpGet {
        path: "/".to_owned(),
        port: Port::Name("web".to_owned()),
        host: Some("h".to_owned()),
        https: true,
        headers: vec![("X-A".to_owned(), "1".to_owned())],
    };
    assert_eq!(handler(http), expected);
}

#[test]
fn problems_of_a_probe_name_their_field() {
    let number = "must be a whole number from 0 to 2147483647";
    let port = "must be a number from 1 to 65535, or the name of a port";
    let cases = [
        ("{}", "p: has no handler: set one of httpGet, tcpSocket, grpc or exec".to_owned()),
        ("[]", "p: a list must be an object".to_owned()),
        (
            r#"{"grpc":{"port":1},"exec":{"command":["a"]}}"#,
            "p: has two handlers, grpc and exec: keep one of them".to_owned(),
        ),
        (r#"{"grpc":{"port":1},"periodSeconds":-1}"#, format!("p.periodSeconds: -1 {number}")),
        (r#"{"grpc":{"port":1},"periodSeconds":1.5}"#, format!("p.periodSeconds: 1.5 {number}")),
        (r#"{"grpc":{"port":1},"periodSeconds":"30"}"#, format!("p.periodSeconds: \"30\" {number}")),
        (r#"{"grpc":{}}"#, "p.grpc.port: is missing: set the port to probe".to_owned()),
        (
            r#"{"grpc":{"port":"web"}}"#,
            "p.grpc.port: \"web\" must be a whole number from 1 to 65535".to_owned(),
        ),
        (r#"{"httpGet":{"port":"WEB"}}"#, format!("p.httpGet.port: \"WEB\" {port}")),
        (r#"{"httpGet":{"port":"8080"}}"#, format!("p.httpGet.port: \"8080\" {port}")),
        (r#"{"tcpSocket":{"port":true}}"#, format!("p.tcpSocket.port: true {port}")),
        (
            r#"{"tcpSocket":{"port":65536}}"#,
            "p.tcpSocket.port: 65536 must be a whole number from 1 to 65535".to_owned(),
        ),
        (
            r#"{"httpGet":{"port":1,"scheme":"http"}}"#,
            "p.httpGet.scheme: \"http\" must be HTTP or HTTPS".to_owned(),
        ),
        (
            r#"{"httpGet":{"port":1,"httpHeaders":[{"name":"a b","value":"x"}]}}"#,
            "p.httpGet.httpHeaders[0].name: \"a b\" must be the name of an HTTP header".to_owned(),
        ),
        (
            r#"{"httpGet":{"port":1,"httpHeaders":[{"name":"a","value":"x\r\ny: z"}]}}"#,
            "p.httpGet.httpHeaders[0].value: must be one line".to_owned(),
        ),
        (r#"{"exec":{"command":[]}}"#, "p.exec.command: must name a command".to_owned()),
        (
            r#"{"tcpSocket":{"port":1,"prot":2}}"#,
            "p.tcpSocket.prot: is an unknown field: use port or host".to_owned(),
        ),
    ];
    for (text, message) in cases {
        assert_eq!(parse(text), Err(vec![message]), "{text}");
    }
    assert!(parse("{").unwrap_err()[0].starts_with("p: is not JSON: "));
    // Kubernetes has this for other probes only.
    assert!(parse(r#"{"grpc":{"port":1},"terminationGracePeriodSeconds":1}"#).is_err());
}

#[test]
fn a_probe_belongs_to_a_container_that_stays() {
    let at = |container: &str| format!("/metadata/annotations/quorate.dev~1disruption-probe.{container}");
    let text = json!(r#"{"grpc":{"port":1}}"#);
    let problems =
        |container: &str| probe::problems(&pod(with(load("pod.json"), &at(container), text.clone())));
    assert_eq!(problems("metrics"), []);
    assert_eq!(problems("proxy"), [], "a sidecar stays");
    for container in ["fetch", "absent", ""] {
        let problems = problems(container);
        assert_eq!(
            problems[0].to_string(),
            format!(
                "metadata.annotations[quorate.dev/disruption-probe.{container}]: {container} must be the name of one of \
                 the pod's containers"
            )
        );
    }
}
