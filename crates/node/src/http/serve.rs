//! Connections of clients.
//!
//! A client that connects and says nothing, or speaks slowly, is hung up on: the head of every request has to
//! come in time, also on a connection that is kept for the next one. Dead clients are found out by
//! the kernel's probes. The number of connections is bounded; further ones wait to be accepted. With TLS it is the same: the handshake
//! has to come in time as well.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time until the head of a request is there, from the end of the one before: clients that keep connections, for five minutes
/// at most, must be the ones to close them, or a request meets a connection that is just being closed.
const HEAD_TIME: Duration = Duration::from_secs(330);
/// Time for a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(30);
/// Most connections at once.
const CONNECTIONS_MAX: usize = 4096;
/// Between two tries to accept when the host has no descriptor left.
const AGAIN: Duration = Duration::from_millis(100);
/// Silence before the first probe, time between probes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Serves until it is told to stop, and then until every request under way is answered.
pub async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) {
    serve_within(listener, None, routes, stop, HEAD_TIME).await;
}

/// The same, with TLS.
pub async fn serve_secure(
    listener: TcpListener,
    tls: TlsAcceptor,
    routes: Router,
    stop: CancellationToken,
) {
    serve_within(listener, Some(tls), routes, stop, HEAD_TIME).await;
}

async fn serve_within(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Router,
    stop: CancellationToken,
    head_time: Duration,
) {
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let served = Served {
                    peer: Peer(peer),
                    routes: routes.clone(),
                    stop: stop.clone(),
                    head_time,
                };
                let work = connection(stream, tls.clone(), served);
                connections.spawn(async move {
                    work.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    connections.close();
    connections.wait().await;
}

/// What a connection is served with.
struct Served {
    peer: Peer,
    routes: Router,
    stop: CancellationToken,
    head_time: Duration,
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, served: Served) {
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    // Without them it works as well, only less so.
    drop(stream.set_nodelay(true));
    drop(SockRef::from(&stream).set_tcp_keepalive(&probes));
    let Some(tls) = tls else { return speak(stream, served, false).await };
    let accepted = tokio::select! {
        accepted = timeout(HANDSHAKE_TIME.min(served.head_time), tls.accept(stream)) => accepted,
        () = served.stop.cancelled() => return,
    };
    match accepted {
        Ok(Ok(stream)) => speak(stream, served, true).await,
        Ok(Err(error)) => tracing::debug!(%error, peer = %served.peer.0, "no handshake"),
        Err(_) => tracing::debug!(peer = %served.peer.0, "no handshake in time"),
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    served: Served,
    secure: bool,
) {
    let Served { peer, routes, stop, head_time } = served;
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if secure {
            let proto = HeaderValue::from_static("https");
            request.headers_mut().insert("x-forwarded-proto", proto);
        }
        routes.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_time);
    let mut served =
        std::pin::pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, peer = %peer.0, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn who_speaks_slowly_is_hung_up_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = Router::new().route("/", get(|| async { "hello" }));
        let time = Duration::from_millis(200);
        let server = tokio::spawn(serve_within(listener, None, routes, stop.clone(), time));
        for beginning in ["", "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(beginning.as_bytes()).await.unwrap();
            let began = Instant::now();
            let mut answer = Vec::new();
            let end =
                tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut answer));
            end.await.expect("it is hung up on").unwrap();
            assert!(began.elapsed() >= Duration::from_millis(100), "not at once");
            assert!(!answer.starts_with(b"HTTP/1.1 200"));
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        stop.cancel();
        server.await.unwrap();
    }
}
