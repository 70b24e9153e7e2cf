//! A client with a timeout for every call.

use std::time::Duration;

use kube::Config;

/// Longest silence of a connection. Longer than the silence after which a watch lists again, so that this ends only
/// calls without a timeout of their own.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// Longest time to write a request.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Adds a timeout to each call and turns off automatic retries: the caller must see each response at once.
#[must_use]
pub fn bounded(mut config: Config) -> Config {
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    // The read timeout starts with the request, not with the last use of the connection.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use tokio::net::TcpListener;

    use super::*;

    /// The server accepts the request and never responds.
    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_response_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                taken.push(stream);
            }
        });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        // Time is paused, and jumps ahead while the system connects.
        config.connect_timeout = None;
        let client = Client::try_from(bounded(config)).unwrap();
        let request = http::Request::get("/version").body(Vec::new()).unwrap();
        let answered = tokio::time::timeout(READ_TIMEOUT * 2, client.request_text(request)).await;
        assert!(answered.expect("the call must end by itself").is_err());
        accepting.abort();
    }
}
