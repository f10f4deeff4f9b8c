//! Field errors, with the API server's messages.

use std::fmt;

use serde_json::Value;

/// One error of one field, with the API server's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.replicas`, or `<nil>` where the API server gives no path.
    pub field: String,
    pub reason: Reason,
    /// Without the field: `Invalid value: -1: should be greater than or equal to 0`
    pub message: String,
}

/// The machine-readable cause, serialised as the API server's `FieldValue…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Required,
    Invalid,
    NotSupported,
    NotFound,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
    TypeInvalid,
}

impl Reason {
    /// The `reason` of a cause in a Status.
    pub fn code(self) -> &'static str {
        match self {
            Reason::Required => "FieldValueRequired",
            Reason::Invalid => "FieldValueInvalid",
            Reason::NotSupported => "FieldValueNotSupported",
            Reason::NotFound => "FieldValueNotFound",
            Reason::Forbidden => "FieldValueForbidden",
            Reason::Duplicate => "FieldValueDuplicate",
            Reason::TooLong => "FieldValueTooLong",
            Reason::TooMany => "FieldValueTooMany",
            Reason::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// Whether CEL rules are skipped, since they may rely on the violated constraint.
    pub(super) fn blocks_rules(self) -> bool {
        match self {
            Reason::Required
            | Reason::NotSupported
            | Reason::TooLong
            | Reason::TooMany
            | Reason::TypeInvalid => true,
            Reason::Invalid | Reason::NotFound | Reason::Forbidden | Reason::Duplicate => false,
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError::with_text(field, Reason::Required, "Required value", detail)
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError::with_text(field, Reason::Forbidden, "Forbidden", detail)
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> FieldError {
        FieldError::with_text(field, Reason::Invalid, &format!("Invalid value: {}", go_value(value)), detail)
    }

    /// For an object or list as a whole; its value is not printed.
    pub fn invalid_without_value(field: impl Into<String>, detail: &str) -> FieldError {
        FieldError::with_text(field, Reason::Invalid, "Invalid value", detail)
    }

    pub fn invalid_type(field: impl Into<String>, value: &str, detail: &str) -> FieldError {
        FieldError::with_text(
            field,
            Reason::TypeInvalid,
            &format!("Invalid value: {}", go_quote(value)),
            detail,
        )
    }

    pub fn not_supported<S: AsRef<str>>(
        field: impl Into<String>,
        value: &Value,
        supported: &[S],
    ) -> FieldError {
        let supported: Vec<String> = supported.iter().map(|value| go_quote(value.as_ref())).collect();
        let detail = if supported.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", supported.join(", "))
        };
        FieldError::with_text(
            field,
            Reason::NotSupported,
            &format!("Unsupported value: {}", go_value(value)),
            &detail,
        )
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> FieldError {
        FieldError::with_text(field, Reason::Duplicate, &format!("Duplicate value: {}", go_value(value)), "")
    }

    pub fn too_long(field: impl Into<String>, max: i64) -> FieldError {
        let unit = if max == 1 { "byte" } else { "bytes" };
        FieldError::with_text(
            field,
            Reason::TooLong,
            "Too long",
            &format!("may not be more than {max} {unit}"),
        )
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: i64) -> FieldError {
        let unit = if max == 1 { "item" } else { "items" };
        FieldError::with_text(
            field,
            Reason::TooMany,
            &format!("Too many: {actual}"),
            &format!("must have at most {max} {unit}"),
        )
    }

    /// An error without a path; `value` is formatted already.
    pub(super) fn invalid_without_path(value: &str, detail: &str) -> FieldError {
        FieldError::with_text("<nil>", Reason::Invalid, &format!("Invalid value: {value}"), detail)
    }

    /// For values that the API server formats differently: `what` is the text before the detail.
    pub(crate) fn with_text(
        field: impl Into<String>,
        reason: Reason,
        what: &str,
        detail: &str,
    ) -> FieldError {
        let message = if detail.is_empty() { what.to_owned() } else { format!("{what}: {detail}") };
        FieldError { field: field.into(), reason, message }
    }
}

/// A value as `field.Error` prints it.
fn go_value(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => integer.to_string(),
            None => go_float(number.as_f64().unwrap_or_default()),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// A float as Go's `%v` prints it.
pub(super) fn go_float(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e6).contains(&value.abs()) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value}")
}

/// A string as Go's `%q` prints it.
pub fn go_quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_print_as_in_go() {
        for (value, printed) in [
            (json!(-1), "-1"),
            (json!(1.5), "1.5"),
            (json!(5.0), "5"),
            (json!(1e21), "1e+21"),
            (json!(100000.0), "100000"),
            (json!(1234567.0), "1.234567e+06"),
            (json!(1.5e-7), "1.5e-07"),
            (json!("a\"b\n"), "\"a\\\"b\\n\""),
            (json!({"b": [1, null], "a": true}), r#"{"a":true,"b":[1,null]}"#),
        ] {
            assert_eq!(go_value(&value), printed);
        }
    }
}
