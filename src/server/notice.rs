//! Pages of one sentence, for people who follow a link: no script, not cached, not framed,
//! and their address is sent to nobody.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

/// A way back to the dashboard.
pub const BACK: &str = "<p><a href=\"/\">To the dashboard</a></p>";

/// `below` is HTML, the text is not.
pub fn page(code: StatusCode, text: &str, below: &'static str) -> Response {
    let text = escape(text);
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Serin</title><main><h1>{text}</h1>{below}</main></html>\n"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        ),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let mut response = (code, html).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// For a text node or an attribute in quotes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
