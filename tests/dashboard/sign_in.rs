//! Signing in at an OpenID provider, with rights from a real API server with RBAC.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, PostParams};
use reqwest::{Response, Url};
use serde_json::{Value, json};
use serin::gates::question::SecretFile;
use serin::server::{Access, BoundServer, OidcOptions, ServerHandle, SignIn};

use crate::browser::Browser;
use crate::pages::shots;
use crate::provider::{CLIENT_ID, CLIENT_SECRET, Fault, Provider, Signs};
use crate::rights;
use crate::support::{Folder, eventually};
use crate::world::router;

const TIMEOUT: Duration = Duration::from_secs(120);
const SESSION: &str = "serin-session";

/// The dashboard of two namespaces, of which Alice's group may see and approve in one.
struct World {
    cluster: rights::World,
    provider: Provider,
    server: ServerHandle,
    base: String,
    _files: Folder,
}

impl World {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(change: impl FnOnce(OidcOptions) -> OidcOptions) -> Self {
        let (cluster, provider) = (rights::World::new().await, Provider::start().await);
        let (shop, client) = (&cluster.shop, &cluster.client);
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": "signed-in"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{shop}-shop-approver"),
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "oidc:shop-team"}],
        }))
        .expect("a binding");
        let bindings = Api::namespaced(client.clone(), shop);
        bindings.create(&PostParams::default(), &binding).await.expect("a binding");

        let files = Folder::new("sign-in");
        files.write("session-key", &"k".repeat(40));
        files.write("client-secret", CLIENT_SECRET);
        let bound = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let base = format!("http://{}", bound.address);
        provider.register(&format!("{base}/api/v1/oidc/callback"));
        let options = change(OidcOptions {
            issuer: provider.issuer.clone(),
            client_id: CLIENT_ID.to_owned(),
            client_secret: Some(SecretFile(files.join("client-secret"))),
            session_key: SecretFile(files.join("session-key")),
            scopes: vec!["groups".to_owned()],
            username_claim: "sub".to_owned(),
            username_prefix: "oidc:".to_owned(),
            groups_claim: Some("groups".to_owned()),
            groups_prefix: "oidc:".to_owned(),
            authorities: Vec::new(),
            base_url: base.clone(),
            session_lifetime: Duration::from_secs(3_600),
        });
        let name = options.provider_name();
        let SignIn { cookies, router: sign_in } = SignIn::new(options).expect("an HTTP client");
        let access = Access::by_token_or_cookie(client.clone(), Vec::new(), cookies);
        let api = router(access, &cluster.telemetry, Arc::new(Timestamp::now), Some(&name)).merge(sign_in);
        let server = bound.for_viewers().serve(api, None);
        Self { cluster, provider, server, base, _files: files }
    }

    fn agent(&self) -> Agent {
        let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        Agent {
            http: http.build().expect("an HTTP client"),
            base: self.base.clone(),
            cookies: BTreeMap::new(),
        }
    }

    /// Signed in; waits until the authorizer knows the binding.
    async fn alice(&self) -> Agent {
        let mut alice = self.agent();
        assert_eq!(alice.sign_in("alice").await.status(), StatusCode::SEE_OTHER);
        eventually("the rights are in force", TIMEOUT, async || {
            alice.list().await == [self.cluster.shop.clone()]
        })
        .await;
        alice
    }
}

/// As a browser without a page: it keeps cookies.
struct Agent {
    http: reqwest::Client,
    base: String,
    cookies: BTreeMap<String, String>,
}

impl Agent {
    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let url = format!("{}{path}", self.base);
        self.http.request(method, url).header(header::COOKIE, cookies.join("; "))
    }

    async fn visit(&mut self, path: &str) -> Response {
        let response = self.request(Method::GET, path).send().await.expect("an answer");
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            let cookie = cookie.to_str().expect("text");
            let (name, value) =
                cookie.split(';').next().expect("a cookie").split_once('=').expect("a cookie");
            if cookie.contains("Max-Age=0") {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        response
    }

    /// The address at the provider.
    async fn begin(&mut self) -> Url {
        let response = self.visit("/api/v1/oidc/login").await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        location(&response).parse().expect("a URL")
    }

    /// What the provider sends the browser back to.
    async fn decide(&self, authorize: &Url, user: &str) -> String {
        let mut url = authorize.clone();
        let asked = self.http.get(url.clone()).send().await.expect("an answer");
        assert_eq!(asked.status(), StatusCode::OK, "{}", asked.text().await.unwrap_or_default());
        url.set_path("/realm/decide");
        url.query_pairs_mut().append_pair("user", user);
        let decided = self.http.get(url).send().await.expect("an answer");
        location(&decided).strip_prefix(&self.base).expect("our address").to_owned()
    }

    async fn sign_in(&mut self, user: &str) -> Response {
        let authorize = self.begin().await;
        let back = self.decide(&authorize, user).await;
        self.visit(&back).await
    }

    async fn call(&self, method: Method, path: &str) -> (StatusCode, Value) {
        let request = self.request(method, path).header("x-serin-session", "1");
        let response = request.send().await.expect("an answer");
        (response.status(), response.json().await.unwrap_or_default())
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::GET, path).await
    }

    /// Namespaces of the Canaries that are seen.
    async fn list(&self) -> Vec<String> {
        let (code, list) = self.get("/api/v1/canaries").await;
        assert_eq!(code, StatusCode::OK, "{list}");
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item["namespace"].as_str().expect("a name").to_owned()).collect()
    }
}

fn location(response: &Response) -> String {
    let location = response.headers().get(header::LOCATION);
    location.unwrap_or_else(|| panic!("{response:?}")).to_str().expect("text").to_owned()
}

async fn refused(response: Response) -> String {
    let code = response.status();
    let cookies: Vec<_> = response.headers().get_all(header::SET_COOKIE).into_iter().cloned().collect();
    let text = response.text().await.expect("text");
    assert!(code.is_client_error(), "{code}: {text}");
    assert!(cookies.is_empty(), "{cookies:?}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_has_the_rights_of_the_user_and_groups_and_no_others() {
    let world = World::new().await;
    let (shop, bank) = (&world.cluster.shop, &world.cluster.bank);
    // Both algorithms.
    world.provider.sign_with(Signs::Rsa);
    let alice = world.alice().await;
    world.provider.sign_with(Signs::Elliptic(0));
    let mut bob = world.agent();
    let response = bob.sign_in("bob").await;
    assert_eq!(location(&response), "/#signed-in");
    let set = response.headers().get_all(header::SET_COOKIE);
    let set: Vec<&str> = set.into_iter().map(|cookie| cookie.to_str().expect("text")).collect();
    let session = set.iter().find(|cookie| cookie.starts_with("serin-session=")).expect("a session");
    assert!(session.ends_with("; Path=/; Max-Age=3600; HttpOnly; SameSite=Strict"), "{session}");
    assert!(!bob.cookies.contains_key("serin-sign-in"), "{set:?}");

    assert_eq!(alice.get("/api/v1/me").await.1["user"], "oidc:alice");
    let one = |namespace: &str| format!("/api/v1/namespaces/{namespace}/canaries/web");
    let (code, canary) = alice.get(&one(shop)).await;
    assert_eq!((code, &canary["mayAct"]), (StatusCode::OK, &json!(true)), "{canary}");
    assert_eq!(alice.get(&one(bank)).await.0, StatusCode::FORBIDDEN);
    let pause = |namespace: &str| format!("{}/pause", one(namespace));
    assert_eq!(alice.call(Method::POST, &pause(shop)).await.0, StatusCode::ACCEPTED);
    assert_eq!(alice.call(Method::POST, &pause(bank)).await.0, StatusCode::FORBIDDEN);

    assert_eq!(bob.list().await, [""; 0]);
    for namespace in [shop, bank] {
        assert_eq!(bob.get(&one(namespace)).await.0, StatusCode::FORBIDDEN);
        assert_eq!(bob.call(Method::POST, &pause(namespace)).await.0, StatusCode::FORBIDDEN);
    }
    // A token counts before the cookie.
    let both = alice.request(Method::GET, "/api/v1/me").bearer_auth(&world.cluster.tokens["viewer"]);
    let both: Value = both.send().await.expect("an answer").json().await.expect("JSON");
    assert!(both["user"].as_str().is_some_and(|user| user.ends_with(":viewer")), "{both}");
    // One whom the provider refuses is nobody.
    let refusal = refused(world.agent().sign_in("nobody").await).await;
    assert!(refusal.contains("the sign-in provider refused: access_denied"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_is_of_use_to_the_page_only_and_until_it_ends() {
    let world =
        World::with(|options| OidcOptions { session_lifetime: Duration::from_secs(6), ..options }).await;
    let mut agent = world.agent();
    agent.sign_in("alice").await;
    // A form or an image of another site sends no header of its own.
    for (method, path) in [
        (Method::GET, "/api/v1/canaries".to_owned()),
        (Method::POST, format!("/api/v1/namespaces/{}/canaries/web/pause", world.cluster.shop)),
        (Method::POST, "/api/v1/oidc/logout".to_owned()),
    ] {
        let response = agent.request(method, &path).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(agent.get("/api/v1/me").await.0, StatusCode::OK);
    let mut forged = world.agent();
    let (start, end) = agent.cookies[SESSION].split_at(30);
    let flipped = if end.starts_with('A') { 'B' } else { 'A' };
    forged.cookies.insert(SESSION.to_owned(), format!("{start}{flipped}{}", &end[1..]));
    assert_eq!(forged.get("/api/v1/me").await.0, StatusCode::UNAUTHORIZED);

    let (code, answer) = tokio::time::timeout(TIMEOUT, async {
        loop {
            let answer = agent.get("/api/v1/me").await;
            if answer.0 != StatusCode::OK {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await
    .expect("the session ends");
    assert_eq!(
        (code, &answer["error"]),
        (StatusCode::UNAUTHORIZED, &json!("you are not signed in any more; sign in again"))
    );

    let logout = agent.request(Method::POST, "/api/v1/oidc/logout").header("x-serin-session", "1");
    let logout = logout.send().await.expect("an answer");
    assert_eq!(logout.status(), StatusCode::NO_CONTENT);
    let cleared = logout.headers()[header::SET_COOKIE].to_str().expect("text");
    assert!(cleared.starts_with("serin-session=; Path=/; Max-Age=0"), "{cleared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_id_token_signs_nobody_in() {
    let world = World::new().await;
    for (fault, why) in [
        (Fault::OtherNonce, "not of the sign-in that this browser began"),
        (Fault::NoNonce, "not of the sign-in that this browser began"),
        (Fault::OtherIssuer, "of another issuer"),
        (Fault::OtherAudience, "meant for another client"),
        (Fault::SeveralAudiences, "meant for another client"),
        (Fault::Expired, "has expired"),
        (Fault::Future, "not valid yet"),
        (Fault::Unsigned, "signed with none, and RS256 and ES256 only are accepted"),
        (Fault::SignedWithPublicKey, "signed with HS256"),
        (Fault::ForgedClaims, "signature is not valid"),
        (Fault::CriticalHeader, "demands an extension"),
    ] {
        for signs in [Signs::Rsa, Signs::Elliptic(0)] {
            world.provider.sign_with(signs);
            world.provider.fault(fault);
            let mut agent = world.agent();
            let text = refused(agent.sign_in("alice").await).await;
            assert!(text.contains(why), "{fault:?}: {text}");
            assert!(!agent.cookies.contains_key(SESSION), "{fault:?}");
        }
    }
    world.provider.fault(Fault::None);
    assert_eq!(world.agent().sign_in("alice").await.status(), StatusCode::SEE_OTHER);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_gives_no_names_of_kubernetes_and_no_unverified_addresses() {
    let change = |options| OidcOptions {
        username_claim: "email".to_owned(),
        username_prefix: String::new(),
        groups_prefix: String::new(),
        ..options
    };
    let world = World::with(change).await;
    for (fault, why) in [
        (Fault::SystemGroup, "system:masters is a name of Kubernetes itself"),
        (Fault::UnverifiedEmail, "has not verified this e-mail address"),
    ] {
        world.provider.fault(fault);
        let text = refused(world.agent().sign_in("alice").await).await;
        assert!(text.contains(why), "{text}");
    }
    world.provider.fault(Fault::None);
    let mut alice = world.agent();
    alice.sign_in("alice").await;
    assert_eq!(alice.get("/api/v1/me").await.1["user"], "alice@example.com");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_ends_once_in_the_browser_that_began_it() {
    const NOT_BEGUN: &str = "was not begun in this browser";
    let world = World::new().await;
    let mut agent = world.agent();
    let authorize = agent.begin().await;
    let begun = agent.cookies.clone();
    let back = agent.decide(&authorize, "alice").await;
    // In another browser: the link of somebody else's sign-in.
    assert!(refused(world.agent().visit(&back).await).await.contains(NOT_BEGUN));
    let mut other = world.agent();
    other.begin().await;
    assert!(refused(other.visit(&back).await).await.contains(NOT_BEGUN));
    assert_eq!(agent.visit(&back).await.status(), StatusCode::SEE_OTHER);

    // Again, with a code of its own that the provider would accept.
    let of = |name: &str| authorize.query_pairs().find(|(key, _)| key == name).expect(name).1.into_owned();
    let code = world.provider.issue("alice", &of("nonce"), &of("code_challenge"));
    let again = format!("/api/v1/oidc/callback?state={}&code={code}", of("state"));
    let mut replaying = world.agent();
    replaying.cookies = begun;
    assert!(refused(replaying.visit(&again).await).await.contains(NOT_BEGUN));

    // The provider of these tests does check the verifier.
    let without = [("grant_type", "authorization_code"), ("code", &code), ("code_verifier", &"v".repeat(43))];
    let mut form = Url::parse("form:").expect("a URL");
    form.query_pairs_mut().extend_pairs(without);
    let token = agent.http.post(format!("{}/token", world.provider.issuer));
    let token = token.basic_auth("serin%3Adashboard", Some("p%40ss+word%2F%2B%26"));
    let token = token.body(form.query().expect("a form").to_owned()).send().await.expect("an answer");
    assert_eq!(token.json::<Value>().await.expect("JSON")["error"], "invalid_grant");
    // A stolen code in a sign-in of one's own: the verifier is another.
    let mut thief = world.agent();
    let own = thief.begin().await;
    let own = |name: &str| own.query_pairs().find(|(key, _)| key == name).expect(name).1.into_owned();
    let stolen = world.provider.issue("alice", &own("nonce"), &of("code_challenge"));
    let back = format!("/api/v1/oidc/callback?state={}&code={stolen}", own("state"));
    let text = refused(thief.visit(&back).await).await;
    assert!(text.contains("refused the code: 400 Bad Request invalid_grant"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_rotates_in_is_found_and_an_unknown_one_causes_few_requests() {
    let world = World::new().await;
    assert_eq!(world.agent().sign_in("alice").await.status(), StatusCode::SEE_OTHER);
    assert_eq!(world.provider.key_requests(), 1);
    world.provider.sign_with(Signs::Elliptic(1));
    let began = std::time::Instant::now();
    for _ in 0..5 {
        let text = refused(world.agent().sign_in("alice").await).await;
        assert!(text.contains("a key that the provider does not list"), "{text}");
    }
    let expected = 2 + began.elapsed().as_secs() as usize / 10;
    assert!(world.provider.key_requests() <= expected, "{} requests", world.provider.key_requests());
    world.provider.list(&[Signs::Elliptic(1)]);
    eventually("the new key is known", TIMEOUT, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.agent().sign_in("alice").await.status() == StatusCode::SEE_OTHER
    })
    .await;
    // The old one is gone with it.
    world.provider.sign_with(Signs::Elliptic(0));
    refused(world.agent().sign_in("alice").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_not_the_configured_one_is_not_used() {
    let other = |options: OidcOptions| OidcOptions { issuer: format!("{}/", options.issuer), ..options };
    let gone = |options| OidcOptions { issuer: "http://127.0.0.1:1/realm".to_owned(), ..options };
    type Change = fn(OidcOptions) -> OidcOptions;
    let changes: [(Change, &str); 2] =
        [(other, "set --oidc-issuer-url to exactly that"), (gone, "the sign-in provider cannot be used")];
    for (change, why) in changes {
        let world = World::with(change).await;
        let response = world.agent().visit("/api/v1/oidc/login").await;
        assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
        let text = response.text().await.expect("text");
        assert!(text.contains(why), "{text}");
        drop(world.server);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_looks_and_signs_out() {
    let world = World::new().await;
    world.alice().await;
    let browser = Browser::start().await;
    let tab = browser.tab().await;
    tab.open(&format!("{}/#/?q=web", world.base)).await;
    tab.shows("Sign in at 127.0.0.1").await;
    shots(&tab, "sign-in").await;
    tab.click("button", "Sign in at").await;
    tab.shows("Who signs in?").await;
    tab.click("a", "alice").await;
    tab.shows("oidc:alice").await;
    tab.until("document.querySelectorAll('a.row').length === 1").await;
    assert_eq!(tab.eval("location.hash").await, "#/?q=web", "where it was");
    let row = tab.eval("document.querySelector('a.row').textContent").await;
    assert!(row.as_str().is_some_and(|row| row.contains(&world.cluster.shop)), "{row}");
    assert_eq!(tab.eval("document.cookie").await, "", "no script sees the session");
    assert_eq!(tab.complaints(), [""; 0]);
    shots(&tab, "signed-in").await;
    // Another load of the page knows the session; the button is there.
    tab.open(&format!("{}/#/c/{}/web", world.base, world.cluster.shop)).await;
    tab.shows("oidc:alice").await;
    tab.until("document.querySelector('h1')?.textContent.includes('web')").await;
    tab.click("button", "Sign out").await;
    tab.shows("You are signed out of this browser").await;
    assert_eq!(tab.eval("document.querySelectorAll('a.row').length").await, 0);
    let refused = "fetch('/api/v1/me', {headers: {'x-serin-session': '1'}}).then((answer) => answer.status)";
    assert_eq!(tab.eval(refused).await, 401);
}
