//! The `format`s that the API server checks; it ignores all others.

use std::net::IpAddr;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::SchemaType;

pub(super) struct Format {
    /// As written in the schema.
    pub(super) name: String,
    pub(super) kind: FormatKind,
}

pub(super) enum FormatKind {
    Int32,
    Int64,
    Float,
    Double,
    Text(fn(&str) -> bool),
}

impl Format {
    pub(super) fn parse(schema: &Value, kind: Option<SchemaType>) -> Option<Format> {
        let name = schema.get("format")?.as_str()?;
        let kind = match kind {
            None | Some(SchemaType::String) => FormatKind::Text(text_check(name)?),
            Some(SchemaType::Integer) => match name {
                "int32" => FormatKind::Int32,
                "int64" => FormatKind::Int64,
                _ => return None,
            },
            Some(SchemaType::Number) => match name {
                "float" => FormatKind::Float,
                "double" => FormatKind::Double,
                _ => return None,
            },
            Some(SchemaType::Object | SchemaType::Array | SchemaType::Boolean | SchemaType::IntOrString) => {
                return None;
            }
        };
        Some(Format { name: name.to_owned(), kind })
    }

    /// The format of a built-in type, if Go's decoder rejects values without it.
    pub(super) fn of_kubernetes(schema: &Value, kind: Option<SchemaType>) -> Option<Format> {
        let mut format = Format::parse(schema, kind)?;
        if let FormatKind::Text(check) = &mut format.kind {
            *check = match format.name.as_str() {
                "byte" => {
                    |text| text.is_empty() || text_check("byte").is_some_and(|is_base64| is_base64(text))
                }
                "date-time" => |text| text.is_empty() || text.parse::<jiff::Timestamp>().is_ok(),
                _ => return None,
            };
        }
        Some(format)
    }

    /// Quantities, which have no `format` in OpenAPI.
    pub(super) fn quantity() -> Format {
        Format { name: "quantity".to_owned(), kind: FormatKind::Text(is_quantity) }
    }
}

/// `500m`, `1.5Gi`.
pub(crate) fn is_quantity(text: &str) -> bool {
    static QUANTITY: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$")
            .expect("a pattern written here compiles")
    });
    QUANTITY.is_match(text)
}

fn text_check(name: &str) -> Option<fn(&str) -> bool> {
    macro_rules! matches_regex {
        ($pattern:literal) => {{
            static REGEX: LazyLock<Regex> =
                LazyLock::new(|| Regex::new($pattern).expect("a pattern written here compiles"));
            |text| REGEX.is_match(text)
        }};
    }
    Some(match name {
        "date-time" | "datetime" => is_date_time,
        "date" => is_date,
        "duration" => is_duration,
        "uri" => is_request_uri,
        "email" => matches_regex!(r"^[^@\s]+@[^@\s]+$"),
        "hostname" => is_hostname,
        "ipv4" => |text| matches!(text.parse(), Ok(IpAddr::V4(_))),
        "ipv6" => |text| matches!(text.parse(), Ok(IpAddr::V6(_))),
        "cidr" => is_cidr,
        "mac" => matches_regex!(
            r"(?i)^([0-9a-f]{2}([:-][0-9a-f]{2}){5}(([:-][0-9a-f]{2}){2})?|[0-9a-f]{4}(\.[0-9a-f]{4}){2,3})$"
        ),
        "uuid" => matches_regex!(r"(?i)^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$"),
        "uuid3" => matches_regex!(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid4" => {
            matches_regex!(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
        }
        "uuid5" => {
            matches_regex!(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
        }
        "hexcolor" => matches_regex!(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        "byte" => {
            matches_regex!(r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$")
        }
        "password" => |_| true,
        "k8s-short-name" => matches_regex!(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
        "k8s-long-name" => |text| {
            text.len() <= 253
                && text.split('.').all(|part| text_check("k8s-short-name").is_some_and(|is| is(part)))
        },
        _ => return None,
    })
}

fn is_date_time(text: &str) -> bool {
    static TIME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$")
            .expect("a pattern written here compiles")
    });
    let lower = text.to_lowercase();
    lower.split_once('t').is_some_and(|(date, time)| is_date(date) && TIME.is_match(time))
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

/// Go's notation (`1h30m`), or a number and a unit in words (`5 minutes`).
fn is_duration(text: &str) -> bool {
    static GO: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$")
            .expect("a pattern written here compiles")
    });
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?i)\d+\s*(ns|nano\w*|us|µs|micro\w*|ms|milli\w*|s|sec\w*|m|min\w*|h|hr|hour\w*|d|day\w*|w|wk|week\w*)\b")
            .expect("a pattern written here compiles")
    });
    GO.is_match(text) || WORDS.is_match(text)
}

/// An absolute URI or an absolute path.
fn is_request_uri(text: &str) -> bool {
    static SCHEME: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("^[a-zA-Z][-+.a-zA-Z0-9]*:.").expect("a pattern written here compiles"));
    let legal = !text.chars().any(|c| c.is_whitespace() || c.is_control());
    legal && (text.starts_with('/') || SCHEME.is_match(text))
}

/// DNS labels separated by dots; the last of several is alphabetic.
fn is_hostname(text: &str) -> bool {
    static LABEL: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$").expect("a pattern written here compiles")
    });
    let word = |label: &str| label.len() >= 2 && label.chars().all(char::is_alphabetic);
    text.len() <= 255
        && text.split('.').all(|label| LABEL.is_match(label))
        && text.rsplit_once('.').is_none_or(|(_, last)| word(last))
}

fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    match (address.parse(), length.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(length)) => length <= 32,
        (Ok(IpAddr::V6(_)), Ok(length)) => length <= 128,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::text_check;

    #[test]
    fn formats_accept_valid_and_reject_invalid_text() {
        for (format, good, bad) in [
            ("date-time", "2026-01-02T03:04:05Z", "2026-13-02T03:04:05Z"),
            ("date-time", "2026-01-02t03:04:05.123+01:00", "2026-01-02 03:04:05"),
            ("date", "2026-01-02", "2026-1-2"),
            ("duration", "1h30m", "soon"),
            ("duration", "5 minutes", "1"),
            ("uri", "https://a.example/b?c", "not a uri"),
            ("ipv4", "10.0.0.1", "::1"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uuid", "0B9FE5F4-3DCC-4D7C-8A5B-6D2B3C4A5E6F", "0b9f"),
            ("hostname", "a.example", "-a.example"),
            ("byte", "aGk=", "aGk"),
            ("k8s-long-name", "a.b-c", "a..b"),
        ] {
            let check = text_check(format).expect("a known format");
            assert!(check(good), "{format} {good}");
            assert!(!check(bad), "{format} {bad}");
        }
    }
}
