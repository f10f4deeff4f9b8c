//! Naming rules. Each returns its violations as messages.

use std::net::IpAddr;
use std::sync::LazyLock;

use regex::Regex;

macro_rules! pattern {
    ($name:ident, $pattern:expr) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(concat!("^(?:", $pattern, ")$")).expect("a pattern written here compiles")
        });
    };
}

pattern!(LABEL, "[a-z0-9]([-a-z0-9]*[a-z0-9])?");
pattern!(DNS1035, "[a-z]([-a-z0-9]*[a-z0-9])?");
pattern!(SUBDOMAIN, r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*");
pattern!(WILDCARD, r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*");
pattern!(QUALIFIED, "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]");
pattern!(CONFIG_KEY, "[-._a-zA-Z0-9]+");

const NOT_A_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' \
     or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NOT_A_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
     must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const NOT_DNS1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
     alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
     validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const NOT_A_WILDCARD: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, \
     which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. \
     '*.example.com', regex used for validation is \
     '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED_CONSISTS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const NOT_A_LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
     or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
     used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const NOT_A_CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
     'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
pub(super) const NOT_A_PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' \
     (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
const NOT_AN_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

pub(super) fn subdomain(name: &str) -> Vec<String> {
    let mut breaches = too_long(name, 253);
    if !SUBDOMAIN.is_match(name) {
        breaches.push(NOT_A_SUBDOMAIN.to_owned());
    }
    breaches
}

pub(super) fn label(name: &str) -> Vec<String> {
    let mut breaches = too_long(name, 63);
    if !LABEL.is_match(name) {
        // A subdomain that is not a label has dots.
        let why = if SUBDOMAIN.is_match(name) { "must not contain dots" } else { NOT_A_LABEL };
        breaches.push(why.to_owned());
    }
    breaches
}

/// A label that begins with a letter: names of resources and versions.
pub(super) fn dns1035(name: &str) -> Vec<String> {
    let mut breaches = too_long(name, 63);
    if !DNS1035.is_match(name) {
        breaches.push(NOT_DNS1035.to_owned());
    }
    breaches
}

pub(super) fn wildcard(name: &str) -> Vec<String> {
    let mut breaches = too_long(name, 253);
    if !WILDCARD.is_match(name) {
        breaches.push(NOT_A_WILDCARD.to_owned());
    }
    breaches
}

/// `name` or `example.com/name`: keys of labels and annotations, finalizers.
pub(super) fn qualified(name: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let parts: Vec<_> = name.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                breaches.push("prefix part must be non-empty".to_owned());
            } else {
                breaches.extend(subdomain(prefix).into_iter().map(|breach| format!("prefix part {breach}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED_CONSISTS} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        breaches.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        breaches.push("name part must be no more than 63 bytes".to_owned());
    }
    if !QUALIFIED.is_match(name) {
        breaches.push(format!("name part {QUALIFIED_CONSISTS}"));
    }
    breaches
}

pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    if value.len() > 63 {
        breaches.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !QUALIFIED.is_match(value) {
        breaches.push(NOT_A_LABEL_VALUE.to_owned());
    }
    breaches
}

/// An IANA service name.
pub(super) fn port_name(name: &str) -> Vec<String> {
    let mut breaches = too_long(name, 15);
    let mut breach = |broken: bool, why: &str| {
        if broken {
            breaches.push(why.to_owned());
        }
    };
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    breach(
        name.is_empty() || !name.chars().all(legal),
        "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
    );
    breach(!name.chars().any(|c| c.is_ascii_lowercase()), "must contain at least one letter (a-z)");
    breach(name.contains("--"), "must not contain consecutive hyphens");
    breach(name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen");
    breaches
}

/// A key of a ConfigMap or Secret, which becomes a file name.
pub(super) fn config_key(key: &str) -> Vec<String> {
    let mut breaches = too_long(key, 253);
    if !CONFIG_KEY.is_match(key) {
        breaches.push(NOT_A_CONFIG_KEY.to_owned());
    }
    match key {
        "." => breaches.push("must not be '.'".to_owned()),
        ".." => breaches.push("must not be '..'".to_owned()),
        key if key.starts_with("..") => breaches.push("must not start with '..'".to_owned()),
        _ => {}
    }
    breaches
}

pub(super) fn variable(name: &str) -> Vec<String> {
    if name.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        return Vec::new();
    }
    let why =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    vec![why.to_owned()]
}

pub(super) fn address(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(_) => Vec::new(),
        Err(_) => vec![NOT_AN_ADDRESS.to_owned()],
    }
}

/// An address at which an endpoint can be reached.
pub(super) fn reachable_address(text: &str) -> Vec<String> {
    let Ok(address) = text.parse::<IpAddr>() else { return vec![NOT_AN_ADDRESS.to_owned()] };
    let mut breaches = Vec::new();
    if address.is_unspecified() {
        breaches.push(format!("may not be unspecified ({text})"));
    }
    // Pods of this crate's node are reachable on loopback.
    let is_pod = matches!(address, IpAddr::V4(address) if crate::node::address::is_pod_address(address));
    if address.is_loopback() && !is_pod {
        breaches.push("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if link_local {
        breaches.push("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if address.is_multicast() {
        breaches.push("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned());
    }
    breaches
}

fn too_long(name: &str, most: usize) -> Vec<String> {
    if name.len() > most { vec![format!("must be no more than {most} characters")] } else { Vec::new() }
}
