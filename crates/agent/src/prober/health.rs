//! The gRPC health service, version 1: SERVING means that the probe passes.

use prost::Message;

use super::grpc::{self, Failure, UNIMPLEMENTED};
use super::tcp;

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

const SERVING: i32 = 1;

/// Calls the health service; `Ok` means that the probe passes.
pub(super) async fn check(host: &str, port: u16, service: &str) -> Result<(), String> {
    let stream = tcp::connect(host, port).await?;
    let request = HealthCheckRequest { service: service.to_owned() };
    let method = "/grpc.health.v1.Health/Check";
    let answer: Result<HealthCheckResponse, Failure> =
        grpc::call(stream, &tcp::authority(host, port), method, &request).await;
    match answer {
        Ok(HealthCheckResponse { status: SERVING }) => Ok(()),
        Ok(HealthCheckResponse { status }) => Err(format!("gRPC health is {}", status_name(status))),
        Err(Failure::Status(UNIMPLEMENTED, _)) => {
            Err("the server has no gRPC health service: it must serve grpc.health.v1.Health".to_owned())
        }
        Err(Failure::Status(code, message)) => {
            Err(format!("gRPC health fails with status {code}: {message}"))
        }
        Err(Failure::Broken(why)) => Err(format!("gRPC call failed: {why}")),
    }
}

fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}
