//! An SMTP server (RFC 5321) with TLS from the first byte or by STARTTLS (RFC 3207) and AUTH
//! PLAIN (RFC 4954), which it demands. It keeps the mails that it accepts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

pub const USER: &str = "serin";
pub const PASSWORD: &str = "mail secret";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    Implicit,
    /// STARTTLS.
    ByCommand,
    /// Neither.
    None,
}

/// What becomes of the next connections; of further ones, nothing unusual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Says nothing.
    Hangs,
    /// 451 after the receivers.
    Later,
    /// 550 for each receiver.
    NoSuchUser,
    /// A greeting without end.
    Endless,
}

#[derive(Clone, Debug, Default)]
pub struct Mail {
    pub from: String,
    pub to: Vec<String>,
    /// Headers and body, unfolded and with its quoted-printable as it came.
    pub data: String,
}

impl Mail {
    /// Of one header, with folded lines joined.
    pub fn header(&self, name: &str) -> String {
        let (headers, _) = self.data.split_once("\r\n\r\n").expect("headers");
        let headers = headers.replace("\r\n ", " ");
        let line =
            headers.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {headers}"))
    }

    /// The text, decoded.
    pub fn text(&self) -> String {
        let (_, body) = self.data.split_once("\r\n\r\n").expect("a body");
        match self.header("Content-Transfer-Encoding").as_str() {
            "base64" => {
                let body = BASE64_STANDARD.decode(body.replace("\r\n", "")).expect("base64");
                String::from_utf8(body).expect("text")
            }
            "quoted-printable" => {
                let joined = body.replace("=\r\n", "");
                let mut bytes = Vec::new();
                let mut rest = joined.as_bytes();
                while let Some((first, after)) = rest.split_first() {
                    if *first == b'=' {
                        let hex = std::str::from_utf8(&after[..2]).expect("hex");
                        bytes.push(u8::from_str_radix(hex, 16).expect("hex"));
                        rest = &after[2..];
                    } else {
                        bytes.push(*first);
                        rest = after;
                    }
                }
                String::from_utf8(bytes).expect("text")
            }
            _ => body.to_owned(),
        }
        .replace("\r\n", "\n")
    }
}

pub struct MailServer {
    pub address: SocketAddr,
    /// PEM.
    pub authority: String,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    tls: Tls,
    acceptor: TlsAcceptor,
    mails: Mutex<Vec<Mail>>,
    troubles: Mutex<VecDeque<Trouble>>,
    connections: Mutex<usize>,
}

impl MailServer {
    pub async fn start(tls: Tls, troubles: impl IntoIterator<Item = Trouble>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (authority, config) = certificates();
        let shared = Arc::new(Shared {
            tls,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            mails: Mutex::default(),
            troubles: Mutex::new(troubles.into_iter().collect()),
            connections: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *serving.connections.lock() += 1;
                let shared = Arc::clone(&serving);
                tokio::spawn(async move { shared.serve(stream).await });
            }
        });
        Self { address, authority, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub fn mails(&self) -> Vec<Mail> {
        self.shared.mails.lock().clone()
    }

    pub fn connections(&self) -> usize {
        *self.shared.connections.lock()
    }
}

/// An authority, and a certificate of it for loopback.
fn certificates() -> (String, ServerConfig) {
    let authority_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
    let server = server.signed_by(&key, &Issuer::new(params, authority_key)).expect("a certificate");
    serin::tls::install_crypto_provider();
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![server.der().clone()], key).expect("a pair");
    (authority.pem(), config)
}

/// A stream to go on with, encrypted.
enum Next {
    Ended,
    Encrypt,
}

impl Shared {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let trouble = self.troubles.lock().pop_front();
        if trouble == Some(Trouble::Hangs) {
            return std::future::pending().await;
        }
        if self.tls == Tls::Implicit {
            let Ok(stream) = self.acceptor.accept(stream).await else { return };
            self.talk(&mut BufReader::new(stream), true, trouble).await;
            return;
        }
        let mut stream = BufReader::new(stream);
        if let Some(Next::Encrypt) = self.talk(&mut stream, false, trouble).await {
            let Ok(stream) = self.acceptor.accept(stream.into_inner()).await else { return };
            // No greeting after STARTTLS.
            self.commands(&mut BufReader::new(stream), true, trouble).await;
        }
    }

    async fn talk(
        &self,
        stream: &mut (impl AsyncBufReadWrite + Unpin),
        encrypted: bool,
        trouble: Option<Trouble>,
    ) -> Option<Next> {
        if trouble == Some(Trouble::Endless) {
            loop {
                stream.write_all(b"220-mail.example.com, which has more to say\r\n").await.ok()?;
            }
        }
        stream.write_all(b"220 mail.example.com ESMTP\r\n").await.ok()?;
        self.commands(stream, encrypted, trouble).await
    }

    async fn commands(
        &self,
        stream: &mut (impl AsyncBufReadWrite + Unpin),
        encrypted: bool,
        trouble: Option<Trouble>,
    ) -> Option<Next> {
        let (mut mail, mut known) = (Mail::default(), false);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return Some(Next::Ended);
            }
            let line = line.trim_end();
            let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
            let address = || line.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
            let answer = match verb.as_str() {
                "EHLO" if !encrypted && self.tls == Tls::ByCommand => "250-mail.example.com\r\n250 STARTTLS",
                "EHLO" if encrypted => "250-mail.example.com\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN",
                "EHLO" => "250 mail.example.com",
                "STARTTLS" if self.tls == Tls::ByCommand && !encrypted => {
                    stream.write_all(b"220 go ahead\r\n").await.ok()?;
                    return Some(Next::Encrypt);
                }
                "AUTH" => {
                    let expected = BASE64_STANDARD.encode(format!("\0{USER}\0{PASSWORD}"));
                    known = encrypted && line == format!("AUTH PLAIN {expected}");
                    if known { "235 welcome" } else { "535 5.7.8 user or password is wrong" }
                }
                "MAIL" | "RCPT" | "DATA" if !known => "530 5.7.0 sign in first",
                "MAIL" => {
                    mail = Mail { from: address(), ..Mail::default() };
                    "250 ok"
                }
                "RCPT" if trouble == Some(Trouble::NoSuchUser) => "550 5.1.1 no such user",
                "RCPT" => {
                    mail.to.push(address());
                    "250 ok"
                }
                "DATA" if trouble == Some(Trouble::Later) => "451 4.7.1 greylisted, try again",
                "DATA" => {
                    stream.write_all(b"354 go on\r\n").await.ok()?;
                    loop {
                        let mut line = String::new();
                        stream.read_line(&mut line).await.ok()?;
                        if line == ".\r\n" {
                            break;
                        }
                        assert!(line.len() <= 1000, "RFC 5322: 998 characters and CRLF");
                        mail.data.push_str(line.strip_prefix('.').unwrap_or(&line));
                    }
                    self.mails.lock().push(std::mem::take(&mut mail));
                    "250 queued"
                }
                "QUIT" => {
                    let _ = stream.write_all(b"221 bye\r\n").await;
                    return Some(Next::Ended);
                }
                _ => "502 unknown",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
            stream.flush().await.ok()?;
        }
    }
}

trait AsyncBufReadWrite: tokio::io::AsyncBufRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> AsyncBufReadWrite for BufReader<T> {}
