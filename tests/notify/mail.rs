//! Mail, to an SMTP server of these tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serin::api::AlertProviderSpec;
use serin::api::canary::{Phase, Severity};
use serin::notify::{
    AnswerLinks, ApprovalRequest, Destination, DestinationError, MailRouteError, Notification, Options,
};
use serin::tenancy::TenantAddresses;

use super::mail_server::{MailServer, PASSWORD, Tls, Trouble, USER};
use super::{Log, deliver, notification, outbox, quick, secret, spec};

fn mail_spec(address: &str) -> AlertProviderSpec {
    AlertProviderSpec {
        channel: None,
        username: Some("Serin, blue".to_owned()),
        from: Some("serin@example.com".to_owned()),
        to: Some(vec!["on-call@example.com".to_owned(), "shop@example.com".to_owned()]),
        ..spec("email", Some(address))
    }
}

fn address(server: &MailServer, scheme: &str) -> String {
    format!("{scheme}://{}", server.address)
}

fn destination(server: &MailServer, scheme: &str) -> Arc<Destination> {
    with_password(server, scheme, PASSWORD)
}

fn with_password(server: &MailServer, scheme: &str, password: &str) -> Arc<Destination> {
    let secret = secret(&[("username", USER), ("password", password), ("ca.crt", &server.authority)]);
    let spec = mail_spec(&address(server, scheme));
    Arc::new(Destination::new(format!("prod/{}", server.address), &spec, &secret).expect("a destination"))
}

fn question(gate: &str) -> Notification {
    let approval = ApprovalRequest {
        gate: gate.to_owned(),
        step_index: Some(2),
        command: format!("serin approve web --namespace prod --gate {gate}"),
        buttons: false,
        links: Some(AnswerLinks {
            approve_url: format!("https://serin.example.com/api/v1/answers/{}", "a".repeat(900)),
            reject_url: "https://serin.example.com/api/v1/answers/no".to_owned(),
        }),
    };
    Notification {
        severity: Severity::Info,
        reason: "AwaitingApproval",
        approval: Some(approval),
        ..notification()
    }
}

fn promoted(release: u64) -> Notification {
    Notification {
        severity: Severity::Info,
        reason: "Promoted",
        phase: Phase::Succeeded,
        sentence: "Revision 1-abc is promoted.".to_owned(),
        release,
        ..notification()
    }
}

#[tokio::test]
async fn a_mail_goes_through_tls_with_sender_receivers_text_and_links() {
    for (tls, scheme) in [(Tls::Implicit, "smtps"), (Tls::ByCommand, "smtp")] {
        let server = MailServer::start(tls, []).await;
        let to = destination(&server, scheme);
        deliver(&to, &notification()).await;
        let mails = server.mails();
        assert_eq!(mails.len(), 1, "{scheme}");
        let mail = &mails[0];
        assert_eq!(mail.from, "serin@example.com");
        assert_eq!(mail.to, ["on-call@example.com", "shop@example.com"]);
        // `Serin, blue`: a comma would end a name.
        assert_eq!(mail.header("From"), "=?utf-8?b?U2VyaW4sIGJsdWU=?= <serin@example.com>");
        assert_eq!(mail.header("Subject"), "[blue] web.prod: rolled back");
        assert_eq!(mail.header("Auto-Submitted"), "auto-generated");
        assert_eq!(mail.header("References"), mail.header("In-Reply-To"));
        let text = mail.text();
        for part in [
            super::MESSAGE,
            "Image: web:v1 → v2",
            "Traffic: 30 %",
            "request-success-rate (fail): 98.1 against 99.95",
            "Dashboard: https://serin.example.com/#/c/prod/web",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!format!("{to:?}").contains(PASSWORD));
    }
}

#[tokio::test]
async fn a_release_sends_one_mail_for_each_way_in_which_it_matters() {
    let server = MailServer::start(Tls::Implicit, []).await;
    let (to, outbox) = (destination(&server, "smtps"), outbox(quick()));
    let advanced = Notification { severity: Severity::Info, reason: "Advanced", ..notification() };
    let warned = Notification { severity: Severity::Warn, reason: "CheckFailed", ..notification() };
    let next = |release, notification: Notification| Notification { release, ..notification };
    for (notification, mails) in [
        (promoted(2), 0),
        (advanced.clone(), 0),
        (warned.clone(), 1),
        (warned.clone(), 1),
        (question("qa"), 2),
        (question("qa"), 2),
        (question("legal"), 3),
        (notification(), 4),
        (notification(), 4),
        (next(4, advanced), 4),
        (next(4, warned), 5),
        (promoted(4), 6),
        (promoted(4), 6),
        (promoted(5), 6),
    ] {
        outbox.send(&to, &notification);
        assert!(outbox.flush(Duration::from_secs(20)).await);
        assert_eq!(server.mails().len(), mails, "after {} of {}", notification.reason, notification.release);
    }
    let mails = server.mails();
    let subjects: Vec<String> = mails.iter().map(|mail| mail.header("References")).collect();
    assert!(subjects[..4].iter().all(|thread| *thread == subjects[0]), "one thread: {subjects:?}");
    assert_ne!(subjects[4], subjects[0], "another release");
    let text = mails[1].text();
    let link = format!("Approve…: https://serin.example.com/api/v1/answers/{}\n", "a".repeat(900));
    assert!(text.contains(&link), "{text}");
    assert!(text.contains("Approve with: serin approve web --namespace prod --gate qa"), "{text}");
    assert!(text.contains("Verdict: fail: request-success-rate"), "{text}");
}

#[tokio::test]
async fn hostile_texts_add_no_header_and_no_receiver() {
    let server = MailServer::start(Tls::Implicit, []).await;
    let hostile = Notification {
        cluster: Some("blue]\r\nBcc: evil@example.com\r\n\r\n<script>".to_owned()),
        sentence: "a\r\n.\r\nMAIL FROM:<evil@example.com>\r\n".repeat(2000),
        ..notification()
    };
    deliver(&destination(&server, "smtps"), &hostile).await;
    let mails = server.mails();
    assert_eq!((mails.len(), mails[0].to.len()), (1, 2));
    let (headers, _) = mails[0].data.split_once("\r\n\r\n").expect("headers");
    assert!(!headers.contains("\r\nBcc") && headers.len() < 3_000, "{headers}");
    assert!(mails[0].text().chars().count() < 12_000);
}

#[tokio::test]
async fn a_mail_is_tried_again_unless_it_is_refused() {
    let server = MailServer::start(Tls::Implicit, [Trouble::Later, Trouble::Endless, Trouble::Hangs]).await;
    let options = Options { timeout: Duration::from_millis(1_500), ..quick() };
    let tally = Arc::clone(&options.counters);
    let outbox = outbox(options);
    let began = Instant::now();
    outbox.send(&destination(&server, "smtps"), &notification());
    assert!(outbox.flush(Duration::from_secs(60)).await);
    assert_eq!((server.mails().len(), server.connections()), (1, 4), "{:?}", tally.snapshot());
    assert!(began.elapsed() < Duration::from_secs(30));

    let log = Log::start();
    let refusing = MailServer::start(Tls::Implicit, [Trouble::NoSuchUser]).await;
    outbox.send(&destination(&refusing, "smtps"), &notification());
    let wrong = MailServer::start(Tls::Implicit, []).await;
    outbox.send(&with_password(&wrong, "smtps", "guessed"), &notification());
    // Without TLS nothing is sent, neither mail nor password.
    let plain = MailServer::start(Tls::None, []).await;
    outbox.send(&destination(&plain, "smtp"), &notification());
    assert!(outbox.flush(Duration::from_secs(60)).await);
    for server in [&refusing, &wrong, &plain] {
        assert_eq!((server.mails().len(), server.connections()), (0, 1));
    }
    assert_eq!(tally.snapshot(), [("delivered", 1), ("refused", 3), ("failed", 0), ("dropped", 0)]);
    let log = log.text();
    for why in ["no such user", "user or password is wrong", "STARTTLS"] {
        assert!(log.contains(why), "{why} is not in {log}");
    }
    assert!(!log.contains("guessed") && !log.contains(PASSWORD), "{log}");
}

#[tokio::test]
async fn a_server_with_a_certificate_of_somebody_else_gets_nothing() {
    let (server, other) =
        (MailServer::start(Tls::ByCommand, []).await, MailServer::start(Tls::None, []).await);
    let secret = secret(&[("username", USER), ("password", PASSWORD), ("ca.crt", &other.authority)]);
    let to = Destination::new("prod/mail".to_owned(), &mail_spec(&address(&server, "smtp")), &secret);
    let log = Log::start();
    deliver(&Arc::new(to.expect("a destination")), &notification()).await;
    assert_eq!((server.mails().len(), server.connections()), (0, 4));
    assert!(log.text().contains("could not be delivered"), "{}", log.text());
}

#[tokio::test]
async fn the_addresses_that_tenants_may_not_reach_are_not_reached_by_mail() {
    let server = MailServer::start(Tls::Implicit, []).await;
    let deny = ["127.0.0.0/8", "::1/128"].map(|range| range.parse().expect("a range"));
    let options = Options { addresses: TenantAddresses::new(Vec::new(), deny.into()), ..quick() };
    let tally = Arc::clone(&options.counters);
    let outbox = outbox(options);
    let log = Log::start();
    let secret = secret(&[("ca.crt", &server.authority)]);
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let spec = mail_spec(&format!("smtps://{host}:{}", server.address.port()));
        let to = Destination::new(format!("prod/{host}"), &spec, &secret).expect("a destination");
        outbox.send(&Arc::new(to), &notification());
    }
    assert!(outbox.flush(Duration::from_secs(20)).await);
    assert_eq!((tally.snapshot()[1], server.connections()), (("refused", 3), 0), "{}", log.text());
    assert!(log.text().contains("to which tenants' addresses may not lead"), "{}", log.text());
}

#[test]
fn a_half_configured_mail_provider_is_refused_with_a_sentence() {
    let new = |spec: &AlertProviderSpec, pairs: &[(&str, &str)]| match Destination::new(
        "prod/mail".to_owned(),
        spec,
        &secret(pairs),
    ) {
        Err(DestinationError::Mail(error)) => error,
        other => panic!("{other:?}"),
    };
    let good = mail_spec("smtp://mail.example.com");
    for (from, to) in [(None, good.to.clone()), (good.from.clone(), None), (good.from.clone(), Some(vec![]))]
    {
        assert_eq!(new(&AlertProviderSpec { from, to, ..good.clone() }, &[]), MailRouteError::NoMailbox);
    }
    for bad in ["Serin <serin@example.com>", "serin", "a@b\r\nBcc: c@d"] {
        let spec = AlertProviderSpec { from: Some(bad.to_owned()), ..good.clone() };
        assert!(matches!(new(&spec, &[]), MailRouteError::Mailbox(_)), "{bad}");
    }
    for bad in [
        "https://mail.example.com",
        "smtp://user:password@mail.example.com",
        "smtp://mail/?tls=no",
        "mail:25",
    ] {
        assert_eq!(new(&mail_spec(bad), &[]), MailRouteError::Server, "{bad}");
    }
    for half in [("username", "me"), ("password", "secret")] {
        assert_eq!(new(&good, &[half]), MailRouteError::HalfCredentials);
    }
    let nowhere = AlertProviderSpec { address: None, ..good };
    let nowhere = Destination::new("prod/mail".to_owned(), &nowhere, &BTreeMap::new());
    assert_eq!(nowhere.expect_err("no address"), DestinationError::NoAddress);
}
