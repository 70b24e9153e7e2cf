//! Errors of the client in few words.

use std::fmt;

use kube::Error;

/// Shows what the API server answered as a sentence, or why there is no answer: the error itself would show the whole
/// object, or the names of the layers that a cause came through.
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

/// What it all began with.
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
    fn an_answer_is_a_sentence() {
        let status = kube::core::Status::failure("leases \"a\" not found", "NotFound").with_code(404);
        assert_eq!(Plain(&Error::Api(status.boxed())).to_string(), "404 NotFound: leases \"a\" not found");
    }

    #[test]
    fn no_answer_is_its_cause() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "nobody listens");
        let layered = Layer(Box::new(Layer(refused.into())));
        assert_eq!(Plain(&Error::Service(layered.into())).to_string(), "nobody listens");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("a layer")]
    struct Layer(#[source] Box<dyn std::error::Error + Send + Sync>);
}
