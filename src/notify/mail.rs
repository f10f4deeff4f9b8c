//! E-mail, by SMTP over TLS: `smtps://HOST:465`, or `smtp://HOST:587` with STARTTLS, which is
//! required there.
//!
//! Mails cannot be updated, so a release sends one only when it begins to matter in a new way:
//! for each question, the first warning and the rollback; and a promotion that ends such
//! trouble. They are marked as automatic (RFC 3834), so that no machine answers, and those of
//! a release are one thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use lettre::{
    Message,
    address::Envelope,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue},
    },
    transport::smtp::{
        authentication::{Credentials, Mechanism},
        client::{AsyncSmtpConnection, Certificate, CertificateStore, TlsParameters},
        extension::ClientId,
    },
};
use parking_lot::Mutex;
use reqwest::Url;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{Notification, incident, incident::Change, text};
use crate::api::AlertProviderSpec;
use crate::error_chain::error_chain;
use crate::tenancy::TenantAddresses;

const MAX_TEXT_CHARS: usize = 10_000;
const MAX_METRICS: usize = 30;
/// Canaries whose mails are remembered; beyond this, mails are repeated.
const MAX_REMEMBERED: usize = 20_000;

/// Who sends to whom, and through which server.
#[derive(Clone, PartialEq, Eq)]
pub struct MailRoute {
    from: Mailbox,
    to: Vec<Mailbox>,
    host: String,
    port: u16,
    /// TLS from the first byte; otherwise by STARTTLS.
    implicit_tls: bool,
    /// User and password.
    credentials: Option<(String, String)>,
    /// Of the server's certificate, PEM; none: those of the system.
    authority: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailRouteError {
    #[error("mail needs a sender and receivers: set spec.from and spec.to of the AlertProvider")]
    NoMailbox,
    #[error("{0:?} is no mail address; write spec.from and spec.to as name@example.com")]
    Mailbox(String),
    #[error("the address of a mail server is smtps://HOST:465, or smtp://HOST:587 for STARTTLS, and no more")]
    Server,
    #[error("the AlertProvider's Secret has one of the keys username and password: it needs both or none")]
    HalfCredentials,
}

impl MailRoute {
    /// Of an AlertProvider of this type; the Secret may have `username`, `password`, `ca.crt`.
    pub fn new(
        spec: &AlertProviderSpec,
        address: &str,
        secret: &BTreeMap<String, ByteString>,
    ) -> Result<Self, MailRouteError> {
        let (Some(from), Some(to)) = (&spec.from, spec.to.as_deref().filter(|to| !to.is_empty())) else {
            return Err(MailRouteError::NoMailbox);
        };
        let mailbox = |text: &String| {
            let address =
                text.parse().map_err(|_| MailRouteError::Mailbox(text.chars().take(100).collect()))?;
            Ok(Mailbox::new(None, address))
        };
        let sender = spec.username.clone().unwrap_or_else(|| "Serin".to_owned());
        let url = Url::parse(address).map_err(|_| MailRouteError::Server)?;
        let (implicit_tls, port) = match url.scheme() {
            "smtps" => (true, 465),
            "smtp" => (false, 587),
            _ => return Err(MailRouteError::Server),
        };
        let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        let host = url.host_str().filter(|host| !host.is_empty() && is_plain && url.path().len() <= 1);
        let text = |key: &str| {
            let text = secret.get(key).map(|value| String::from_utf8_lossy(&value.0).trim().to_owned());
            text.filter(|text| !text.is_empty())
        };
        let credentials = match (text("username"), text("password")) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err(MailRouteError::HalfCredentials),
        };
        Ok(Self {
            from: Mailbox { name: Some(sender), ..mailbox(from)? },
            to: to.iter().map(mailbox).collect::<Result<_, _>>()?,
            host: host.ok_or(MailRouteError::Server)?.trim_matches(['[', ']']).to_owned(),
            port: url.port().unwrap_or(port),
            implicit_tls,
            credentials,
            authority: secret.get("ca.crt").map(|authority| authority.0.clone()),
        })
    }

    /// The mail about a notification.
    pub fn mail(&self, notification: &Notification) -> Result<Message, lettre::error::Error> {
        let cluster =
            notification.cluster.as_ref().map(|cluster| format!("[{cluster}] ")).unwrap_or_default();
        let subject = text::truncate(&format!("{cluster}{}", notification.headline()), 200);
        let domain = self.from.email.domain();
        let thread = format!("<{}@{domain}>", thread_name(notification));
        let at = SystemTime::from(notification.at);
        let mut mail = Message::builder()
            .from(self.from.clone())
            .date(at)
            .subject(subject.replace(char::is_control, " "))
            .references(thread.clone())
            .in_reply_to(thread)
            .message_id(None)
            .header(ContentType::TEXT_PLAIN);
        for to in &self.to {
            mail = mail.to(to.clone());
        }
        let mut mail = mail.body(body(notification))?;
        for (name, value) in [("Auto-Submitted", "auto-generated"), ("X-Auto-Response-Suppress", "All")] {
            let name = HeaderName::new_from_ascii(name.to_owned()).expect("a name in ASCII");
            mail.headers_mut().insert_raw(HeaderValue::new(name, value.to_owned()));
        }
        Ok(mail)
    }

    /// One attempt.
    pub async fn send(
        &self,
        mail: &Message,
        addresses: &TenantAddresses,
        limit: Duration,
    ) -> Result<(), MailError> {
        let dialogue = async {
            // Connects to the addresses that were checked: a name cannot change between the two.
            let found = addresses.resolve(&self.host, self.port).await;
            let found = found.map_err(|error| match error.downcast_ref::<std::io::Error>() {
                Some(error) => MailError::Failed(error.to_string()),
                None => MailError::Refused(format!("its address {error}")),
            })?;
            self.hand_over(mail.envelope(), &mail.formatted(), &found, limit).await.map_err(MailError::from)
        };
        timeout(limit, dialogue).await.unwrap_or_else(|_| Err(MailError::Failed("timeout".to_owned())))
    }

    async fn hand_over(
        &self,
        envelope: &Envelope,
        mail: &[u8],
        server: &[std::net::SocketAddr],
        limit: Duration,
    ) -> Result<(), lettre::transport::smtp::Error> {
        let mut tls = TlsParameters::builder(self.host.clone());
        if let Some(authority) = &self.authority {
            let authority = Certificate::from_pem(authority)?;
            tls = tls.certificate_store(CertificateStore::None).add_root_certificate(authority);
        }
        let (tls, hello) = (tls.build()?, ClientId::default());
        let implicit = self.implicit_tls.then(|| tls.clone());
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(server, Some(limit), &hello, implicit, None).await?;
        if !self.implicit_tls {
            connection.starttls(tls, &hello).await?;
        }
        if let Some((user, password)) = &self.credentials {
            let credentials = Credentials::new(user.clone(), password.clone());
            connection.auth(&[Mechanism::Plain, Mechanism::Login], &credentials).await?;
        }
        connection.send(envelope, mail).await?;
        // It is accepted, whatever the server answers now.
        let _ = connection.quit().await;
        Ok(())
    }
}

#[derive(Debug)]
pub enum MailError {
    /// Permanent.
    Refused(String),
    /// Transient.
    Failed(String),
}

impl From<lettre::transport::smtp::Error> for MailError {
    fn from(error: lettre::transport::smtp::Error) -> Self {
        let why: String = error_chain(&error).chars().take(300).collect();
        if error.is_permanent() || error.is_client() { Self::Refused(why) } else { Self::Failed(why) }
    }
}

/// The same for all mails of a release.
fn thread_name(notification: &Notification) -> String {
    let Notification { uid, release, .. } = notification;
    let text = format!("{}/{}/{release}", incident::key(notification), uid.as_deref().unwrap_or_default());
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn body(notification: &Notification) -> String {
    let mut parts = vec![notification.sentence.clone()];
    let fields = notification.fields().into_iter().chain(notification.question_fields());
    let fields = fields.map(|(title, value)| format!("{title}: {}", text::truncate(&value, 500)));
    let traffic = format!("Traffic: {} %", notification.share());
    parts.push(fields.chain([traffic]).collect::<Vec<_>>().join("\n"));
    if !notification.metrics.is_empty() {
        let metrics = notification.metrics.iter().take(MAX_METRICS).map(|metric| {
            let line = format!("{} ({}): {}", metric.name, text::verdict(metric.verdict), metric.reason);
            text::truncate(&line, 500)
        });
        parts.push(metrics.collect::<Vec<_>>().join("\n"));
    }
    let links = notification.links().into_iter().filter(|(_, url)| url.len() <= text::MAX_URL);
    let links: Vec<String> = links.map(|(title, url)| format!("{title}: {url}")).collect();
    // Last and whole, however long the rest is.
    let text = text::truncate(&parts.join("\n\n"), MAX_TEXT_CHARS);
    if links.is_empty() { text } else { format!("{text}\n\n{}", links.join("\n")) }
}

/// Which mails were sent about a Canary, by provider, namespace and name.
#[derive(Default)]
pub struct MailMemory(Mutex<HashMap<(String, String, String), Sent>>);

#[derive(Default, PartialEq, Eq)]
struct Sent {
    uid: Option<String>,
    release: u64,
    kinds: BTreeSet<String>,
}

impl MailMemory {
    /// Whether a mail is to be sent now; then it counts as sent.
    pub fn is_due(&self, provider: &str, notification: &Notification) -> bool {
        let Notification { namespace, name, uid, release, .. } = notification;
        let key = (provider.to_owned(), namespace.clone(), name.clone());
        let mut sent = self.0.lock();
        let kind = match incident::change(notification) {
            None => return false,
            Some(Change::Resolve) => return sent.remove(&key).is_some(),
            Some(Change::Open) => match &notification.approval {
                Some(approval) => format!("question {:?} {}", approval.step_index, approval.gate),
                None => format!("{:?}", notification.tone()),
            },
        };
        if sent.len() >= MAX_REMEMBERED {
            sent.clear();
        }
        let of_canary = sent.entry(key).or_default();
        if (&of_canary.uid, of_canary.release) != (uid, *release) {
            *of_canary = Sent { uid: uid.clone(), release: *release, kinds: BTreeSet::new() };
        }
        of_canary.kinds.insert(kind)
    }
}
