//! Durations in the notation of Go: `30s`, `1m30s`, `500ms`.

use std::{borrow::Cow, fmt, str::FromStr, time};

use kube::core::{Message, Rule};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in the notation of Go: one or more numbers, each with its unit
/// (`ns`, `us`, `ms`, `s`, `m`, `h`). Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(time::Duration);

/// Durations that the API server accepts. Nine digits keep the sum far from
/// overflowing.
const PATTERN: &str = "^([0-9]{1,9}([.][0-9]+)?(ns|us|ms|s|m|h))+$";

/// Why a text is not a [`Duration`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write a number and a unit, such as 30s, 1m30s or 500ms")]
pub struct NotADuration {
    text: String,
}

impl Duration {
    /// Zero.
    pub const ZERO: Self = Self(time::Duration::ZERO);

    /// Whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(time::Duration::from_secs(seconds))
    }

    /// Whole milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(time::Duration::from_millis(milliseconds))
    }

    /// The rule for a field that must not be shorter than `least`. A text that is
    /// no duration is left to the rule of the type itself.
    pub(super) fn at_least(least: &str, field: &str) -> Rule {
        Rule::new(format!("!self.matches('{PATTERN}') || duration(self) >= duration('{least}')"))
            .message(Message::Message(format!("{field} must be at least {least}")))
    }

    /// The rule for a field that must not be longer than `most`, which is followed
    /// by a `hint`.
    pub(super) fn at_most(most: &str, field: &str, hint: &str) -> Rule {
        Rule::new(format!("!self.matches('{PATTERN}') || duration(self) <= duration('{most}')"))
            .message(Message::Message(format!("{field} must be at most {most}; {hint}")))
    }

    /// As a duration of the standard library.
    pub const fn get(self) -> time::Duration {
        self.0
    }
}

impl From<time::Duration> for Duration {
    fn from(duration: time::Duration) -> Self {
        Self(duration)
    }
}

impl From<Duration> for time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

/// Units from long to short, each with its nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

impl FromStr for Duration {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        parse(text).map(Self).ok_or_else(|| NotADuration { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<time::Duration> {
    if text == "0" {
        return Some(time::Duration::ZERO);
    }
    let mut rest = text;
    let mut total = time::Duration::ZERO;
    while !rest.is_empty() || text.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(part(number, nanos)?)?;
        rest = tail;
    }
    Some(total)
}

/// `number` times a unit of `nanos` nanoseconds, exactly; digits finer than a
/// nanosecond are dropped.
fn part(number: &str, nanos: u64) -> Option<time::Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u32>().ok()? };
    let mut sum = time::Duration::from_nanos(nanos).checked_mul(whole)?;
    let mut scale = nanos;
    for digit in fraction.chars() {
        scale /= 10;
        sum += time::Duration::from_nanos(u64::from(digit.to_digit(10)?) * scale);
    }
    Some(sum)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_nanos();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, nanos) in UNITS.into_iter().filter(|(name, _)| *name != "µs") {
            let nanos = u128::from(nanos);
            if rest >= nanos {
                write!(f, "{}{unit}", rest / nanos)?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "x-kubernetes-validations": [{
                "rule": format!("self.matches('{PATTERN}')"),
                "message": "must be a duration: a number and a unit, such as 30s, 1m30s or 500ms",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_notation_is_parsed() {
        for (text, nanos) in [
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("500ms", 500_000_000),
            ("1.5h", 5_400_000_000_000),
            ("1h1m1s1ms1us1ns", 3_661_001_001_001),
            ("2µs", 2_000),
            ("0.000000001s", 1),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Duration(time::Duration::from_nanos(nanos))), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_an_example() {
        for text in ["", "1", "s", "-1s", "1 s", "1d", ".s", "1.2.3s", "5m nonsense", "99999999999h"] {
            let error = text.parse::<Duration>().expect_err(text);
            assert!(error.to_string().contains("1m30s"), "{error}");
        }
    }

    #[test]
    fn a_displayed_duration_parses_back() {
        for text in ["0s", "1ns", "1m30s", "500ms", "24h", "1h500us"] {
            assert_eq!(text.parse::<Duration>().unwrap().to_string(), text);
        }
    }
}
