//! The page: one document, one module, one style sheet, embedded. They hold no secret and no
//! data: the page asks for a token, or finds the one of `serin dashboard` in its own address,
//! keeps it in the tab's session, and reads [`super::api`] with it. With a provider to sign in
//! at ([`super::oidc`]) it asks for that first, and its requests have the cookie.
//!
//! The content security policy permits nothing but these files and this origin. The token
//! travels in a header only, so no other site can use it.

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http::{StatusCode, header};

use super::notice::escape;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = include_str!("index.html");
/// In the page; replaced by the name of the provider to sign in at.
const NO_PROVIDER: &str = "data-provider=\"\"";
const STYLE: &str = include_str!("dashboard.css");
const ICON: &str = include_str!("icon.svg");

/// One module, in parts that are read one after the other.
const SCRIPT: &str = concat!(
    include_str!("text.js"),
    include_str!("api.js"),
    include_str!("charts.js"),
    include_str!("list.js"),
    include_str!("release.js"),
    include_str!("inventory.js"),
    include_str!("main.js"),
);

/// Bytes of all files together.
pub const SIZE: usize = PAGE.len() + STYLE.len() + ICON.len() + SCRIPT.len();

/// With the name of the provider to sign in at.
pub fn dashboard_router(provider: Option<&str>) -> Router {
    let page: Bytes = match provider {
        None => PAGE.into(),
        Some(name) => PAGE.replace(NO_PROVIDER, &format!("data-provider=\"{}\"", escape(name))).into(),
    };
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", page)))
        .route("/dashboard.css", get(async || file("text/css; charset=utf-8", STYLE.into())))
        .route("/dashboard.js", get(async || file("text/javascript; charset=utf-8", SCRIPT.into())))
        .route("/icon.svg", get(async || file("image/svg+xml", ICON.into())))
}

/// Refuses requests for another host: a name that some site made resolve to this address.
pub fn for_loopback(router: Router, port: u16) -> Router {
    let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}"));
    router.layer(middleware::from_fn(move |request: Request, next: Next| {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let known = host.is_some_and(|host| hosts.iter().any(|known| known == host));
        async move {
            match known {
                true => next.run(request).await,
                false => (StatusCode::MISDIRECTED_REQUEST, "this server has another name\n").into_response(),
            }
        }
    }))
}

fn file(kind: &'static str, text: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // A new version of Serin is seen at the next look.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
