//! Errors of the Kubernetes API as users read them.

use std::sync::LazyLock;

use kube::{Error, core::Status, runtime::watcher};
use regex::Regex;

/// The server's own words, without the client's wrapping; for a missing right also
/// the rule that grants it.
pub fn api_message(error: &Error) -> String {
    match error {
        Error::Api(status) => status_message(status),
        error => error.to_string(),
    }
}

/// The server refuses the request itself: the same request fails until an object, a
/// policy or a right changes.
pub fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Api(status) if is_refusal(status))
}

/// Message of a broken watch, and whether the server refuses it.
pub fn watch_error(error: &watcher::Error) -> (String, bool) {
    match error {
        watcher::Error::InitialListFailed(why)
        | watcher::Error::WatchStartFailed(why)
        | watcher::Error::WatchFailed(why) => (api_message(why), is_refused(why)),
        watcher::Error::WatchError(status) => (status_message(status), is_refusal(status)),
        watcher::Error::NoResourceVersion => (error.to_string(), false),
    }
}

/// Admission denies with 400, 403 or 422.
fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 400 | 401 | 403 | 405 | 413 | 422)
}

fn status_message(status: &Status) -> String {
    match missing_rule(&status.message) {
        Some(rule) => format!("{}; add to its role: {rule}", status.message),
        None => status.message.clone(),
    }
}

/// The rule that the API server's authorizer misses.
fn missing_rule(message: &str) -> Option<String> {
    static FORBIDDEN: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r#"cannot (\S+) resource "([^"]+)" in API group "([^"]*)""#).ok());
    let [verb, resource, group] = FORBIDDEN.as_ref()?.captures(message)?.extract().1;
    Some(format!(r#"apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]"#))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_rule_that_grants_it() {
        let words = r#"services is forbidden: User "system:serviceaccount:serin:serin" cannot list resource "services" in API group "" in the namespace "shop""#;
        let forbidden = Error::Api(Box::new(Status::failure(words, "Forbidden").with_code(403)));
        assert_eq!(
            api_message(&forbidden),
            format!(r#"{words}; add to its role: apiGroups: [""], resources: ["services"], verbs: ["list"]"#)
        );
        assert!(is_refused(&forbidden));
    }

    #[test]
    fn an_admission_denial_is_quoted_as_it_is() {
        let words = r#"admission webhook "policy.example.com" denied the request: no primaries on Friday"#;
        let denied = Error::Api(Box::new(Status::failure(words, "BadRequest").with_code(400)));
        assert_eq!((api_message(&denied), is_refused(&denied)), (words.to_owned(), true));
    }

    #[test]
    fn a_conflict_is_no_refusal() {
        assert!(!is_refused(&Error::Api(Box::new(Status::failure("changed", "Conflict").with_code(409)))));
    }
}
