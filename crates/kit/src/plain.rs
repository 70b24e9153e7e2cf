//! Short messages for client errors.

use std::fmt;

use kube::Error;

/// Shows the status of the API server as a sentence, or the root cause if there is no response. The error itself would
/// show the whole `Status` object, or every layer above the cause.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a>(pub &'a Error);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Api(status) => write!(f, "{} {}: {}", status.code, status.reason, status.message),
            error => write!(f, "{}", cause(error)),
        }
    }
}

/// The root cause.
fn cause(error: &Error) -> &dyn std::error::Error {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(below) = deepest.source() {
        deepest = below;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_as_a_sentence() {
        let status = kube::core::Status::failure("leases \"a\" not found", "NotFound").with_code(404);
        assert_eq!(Plain(&Error::Api(status.boxed())).to_string(), "404 NotFound: leases \"a\" not found");
    }

    #[test]
    fn an_error_without_a_status_is_shown_as_its_root_cause() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "no listener");
        let layered = Layer(Box::new(Layer(refused.into())));
        assert_eq!(Plain(&Error::Service(layered.into())).to_string(), "no listener");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("a layer")]
    struct Layer(#[source] Box<dyn std::error::Error + Send + Sync>);
}
