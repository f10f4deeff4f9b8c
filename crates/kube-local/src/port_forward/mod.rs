//! `pods/NAME/portforward` over a websocket, as kubectl speaks it since 1.31: SPDY/3.1 in
//! binary messages, two streams for each connection, one of them for errors
//! (KEP-4006, kubernetes/enhancements).

mod spdy;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Response, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::node::address::loopback_address;
use super::server::{Call, Server};
use super::status_error::StatusError;
use spdy::{Decoder, Encoder, Frame};

const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// Of RFC 6455.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Frames and pieces of a connection that wait to be written.
const QUEUE: usize = 64;
/// Open at a time.
const MAX_STREAMS: usize = 256;

/// The response that begins the tunnel.
pub fn begin(
    server: &Server,
    call: &Call,
    upgrade: Option<OnUpgrade>,
) -> Result<Response<Body>, StatusError> {
    let key = call.key();
    let pod = server.store.get(&call.resource.collection(), &key);
    let pod = pod.ok_or_else(|| StatusError::not_found(&call.resource, &key.name))?;
    let ip = pod.value["status"]["podIP"].as_str().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
    let ip = ip.ok_or_else(|| StatusError::bad_request(format!("pod {} has no address yet", key.name)))?;
    let accepted = websocket_accept(&call.headers);
    let (Some(accept), Some(upgrade)) = (accepted, upgrade) else {
        let why = format!("only websockets with the protocol {PROTOCOL} can forward ports here");
        return Err(StatusError::bad_request(why));
    };
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => tunnel(upgraded, loopback_address(ip)).await,
            Err(error) => tracing::debug!(%error, "a port-forward ended before it began"),
        }
    });
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    response.body(Body::empty()).map_err(StatusError::internal)
}

/// The answer to the client's key, if it offers our protocol.
fn websocket_accept(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let offers = text(header::SEC_WEBSOCKET_PROTOCOL)?.split(',').any(|offer| offer.trim() == PROTOCOL);
    let is_websocket = text(header::UPGRADE)?.eq_ignore_ascii_case("websocket");
    let key = text(header::SEC_WEBSOCKET_KEY).filter(|_| offers && is_websocket)?;
    let digest = Sha1::new().chain_update(key.as_bytes()).chain_update(WEBSOCKET_GUID).finalize();
    Some(STANDARD.encode(digest))
}

/// A stream that kubectl opened.
enum Stream {
    /// Nothing comes on it; closed when its connection is.
    Errors,
    Data(mpsc::Sender<Vec<u8>>),
}

/// Until kubectl ends it.
async fn tunnel(upgraded: Upgraded, ip: Ipv4Addr) {
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let (mut sink, mut source) = socket.split();
    let (frames, mut outgoing) = mpsc::channel::<Vec<u8>>(QUEUE);
    let writing = async move {
        while let Some(frame) = outgoing.recv().await {
            if sink.send(Message::binary(frame)).await.is_err() {
                return;
            }
        }
    };
    let reading = async {
        let (mut decoder, mut encoder) = (Decoder::new(), Encoder::default());
        let mut streams: HashMap<u32, Stream> = HashMap::new();
        // Error streams that wait for their data stream, by request.
        let mut errors: HashMap<String, u32> = HashMap::new();
        let mut connections = JoinSet::new();
        while let Some(Ok(message)) = source.next().await {
            let Message::Binary(bytes) = message else { continue };
            decoder.push(&bytes);
            loop {
                let frame = match decoder.next() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(error) => return tracing::debug!(%error, "a port-forward ended"),
                };
                while connections.try_join_next().is_some() {}
                match frame {
                    Frame::Open { .. } if streams.len() >= MAX_STREAMS => return,
                    Frame::Open { stream, headers } => {
                        let text = |name: &str| headers.get(name).cloned().unwrap_or_default();
                        let _ = frames.send(encoder.reply(stream)).await;
                        if text("streamtype") == "error" {
                            errors.insert(text("requestid"), stream);
                            streams.insert(stream, Stream::Errors);
                            continue;
                        }
                        let (data, incoming) = mpsc::channel(QUEUE);
                        streams.insert(stream, Stream::Data(data));
                        let connection = Connection {
                            stream,
                            errors: errors.remove(&text("requestid")),
                            address: text("port").parse().ok().map(|port| SocketAddr::from((ip, port))),
                            frames: frames.clone(),
                        };
                        connections.spawn(connection.run(incoming));
                    }
                    Frame::Data { stream, data, is_last } => {
                        if let Some(Stream::Data(sender)) = streams.get(&stream)
                            && !data.is_empty()
                        {
                            // The pod may have closed its side.
                            let _ = sender.send(data).await;
                        }
                        if is_last {
                            streams.remove(&stream);
                        }
                    }
                    Frame::Reset { stream } => drop(streams.remove(&stream)),
                    Frame::Ping { id } => drop(frames.send(encoder.pong(id)).await),
                    Frame::GoAway => return,
                }
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
}

/// One connection to the pod.
struct Connection {
    stream: u32,
    errors: Option<u32>,
    address: Option<SocketAddr>,
    frames: mpsc::Sender<Vec<u8>>,
}

impl Connection {
    async fn run(self, incoming: mpsc::Receiver<Vec<u8>>) {
        let failed = match self.address {
            None => Some("the port is no number".to_owned()),
            Some(address) => match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => {
                    self.copy(socket, incoming).await;
                    None
                }
                Ok(Err(error)) => Some(format!("connect to {address}: {error}")),
                Err(_) => Some(format!("connect to {address}: no answer")),
            },
        };
        let encoder = Encoder::default();
        let _ = self.frames.send(encoder.data(self.stream, &[], true)).await;
        if let Some(errors) = self.errors {
            let why = failed.unwrap_or_default();
            let _ = self.frames.send(encoder.data(errors, why.as_bytes(), true)).await;
        }
    }

    /// Both ways, until the pod has closed its side.
    async fn copy(&self, socket: TcpStream, mut incoming: mpsc::Receiver<Vec<u8>>) {
        let (mut from_pod, mut to_pod) = socket.into_split();
        let sending = async move {
            while let Some(piece) = incoming.recv().await {
                if to_pod.write_all(&piece).await.is_err() {
                    break;
                }
            }
            let _ = to_pod.shutdown().await;
            std::future::pending::<()>().await
        };
        let receiving = async {
            let (mut piece, encoder) = (vec![0; 32 << 10], Encoder::default());
            while let Ok(read) = from_pod.read(&mut piece).await
                && read > 0
            {
                if self.frames.send(encoder.data(self.stream, &piece[..read], false)).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = sending => {}
            () = receiving => {}
        }
    }
}
