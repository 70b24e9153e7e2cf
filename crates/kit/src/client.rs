//! A client that waits for nothing without bound.

use std::time::Duration;

use kube::Config;

/// No connection is waited for longer while it says nothing. Longer than a watch may be silent before it is given up, so
/// that only what has no time-out of its own is ended by it.
const SILENT: Duration = Duration::from_secs(90);

/// No request is written for longer.
const WRITTEN: Duration = Duration::from_secs(30);

/// The same configuration, with a bound to each call; and none is retried by itself, since what was answered is for the
/// caller to know, at once.
#[must_use]
pub fn bounded(mut config: Config) -> Config {
    config.default_retry = false;
    config.read_timeout = Some(SILENT);
    config.write_timeout = Some(WRITTEN);
    // From the request on, not from when the connection was last used.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use tokio::net::TcpListener;

    use super::*;

    /// A peer that takes the request and never answers.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_answers_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                taken.push(stream);
            }
        });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        // Time is paused, and passes while the system connects.
        config.connect_timeout = None;
        let client = Client::try_from(bounded(config)).unwrap();
        let request = http::Request::get("/version").body(Vec::new()).unwrap();
        let answered = tokio::time::timeout(SILENT * 2, client.request_text(request)).await;
        assert!(answered.expect("the call must end by itself").is_err());
        accepting.abort();
    }
}
