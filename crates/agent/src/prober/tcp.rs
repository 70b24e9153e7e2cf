//! TCP connections.

use tokio::net::TcpStream;

/// Opens a TCP connection.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("cannot connect to {}: {error}", authority(host, port)))?;
    // One small request: waiting to fill a packet only delays it.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Host and port as in a URL.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
