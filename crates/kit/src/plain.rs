//! Errors of the client in few words.

use std::fmt;

use kube::Error;

/// Shows what the API server answered as a sentence; the error itself would show the whole object.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a>(pub &'a Error);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Api(status) => write!(f, "{} {}: {}", status.code, status.reason, status.message),
            error => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_sentence() {
        let status = kube::core::Status::failure("leases \"a\" not found", "NotFound").with_code(404);
        assert_eq!(Plain(&Error::Api(status.boxed())).to_string(), "404 NotFound: leases \"a\" not found");
    }
}
