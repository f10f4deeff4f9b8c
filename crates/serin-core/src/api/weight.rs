//! Shares of traffic and probabilities, both in percent.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A share of the traffic in percent, exact to a hundredth: `5`, `0.5`, `0.01`.
///
/// Kept as a whole number of hundredths, so weights compare, add and hash
/// exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

/// Why a number is not a [`Weight`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is not a weight: it must be between 0 and 100 percent")]
pub struct NotAWeight(f64);

impl Weight {
    /// No traffic.
    pub const ZERO: Self = Self(0);
    /// All traffic.
    pub const FULL: Self = Self(10_000);

    /// Rounds to the nearest hundredth of a percent.
    pub fn from_percent(percent: f64) -> Result<Self, NotAWeight> {
        if (0.0..=100.0).contains(&percent) {
            Ok(Self((percent * 100.0).round() as u16))
        } else {
            Err(NotAWeight(percent))
        }
    }

    /// `None` above 10,000, which is all traffic.
    pub const fn from_hundredths(hundredths: u16) -> Option<Self> {
        if hundredths <= Self::FULL.0 { Some(Self(hundredths)) } else { None }
    }

    /// In percent, 0 to 100.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// In hundredths of a percent, 0 to 10,000.
    pub const fn hundredths(self) -> u16 {
        self.0
    }

    /// The share of the other arm.
    pub const fn complement(self) -> Self {
        Self(Self::FULL.0 - self.0)
    }

    /// The sum, at most all traffic.
    pub fn plus(self, other: Self) -> Self {
        Self((self.0 + other.0).min(Self::FULL.0))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.percent())
    }
}

impl Serialize for Weight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(100) {
            serializer.serialize_u16(self.0 / 100)
        } else {
            serializer.serialize_f64(self.percent())
        }
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_percent(f64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for Weight {
    fn schema_name() -> Cow<'static, str> {
        "Weight".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": 100 })
    }
}

/// A probability or score in percent, written `1`, `"1%"` or `"0.5%"`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

/// Why a text is not a [`Percent`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a percentage: write a number from 0 to 100 and a percent sign, such as 1% or 0.5%")]
pub struct NotAPercentage(String);

impl Percent {
    /// From a number between 0 and 100.
    pub fn new(percent: f64) -> Result<Self, NotAPercentage> {
        if (0.0..=100.0).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(NotAPercentage(percent.to_string()))
        }
    }

    /// Between 0 and 1.
    pub fn fraction(self) -> f64 {
        self.0 / 100.0
    }

    /// Between 0 and 100.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = NotAPercentage;

    fn from_str(text: &str) -> Result<Self, NotAPercentage> {
        Some(text.strip_suffix('%').unwrap_or(text))
            .filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))
            .and_then(|number| number.parse().ok())
            .and_then(|percent| Self::new(percent).ok())
            .ok_or_else(|| NotAPercentage(text.to_owned()))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum PercentRepr {
            Number(f64),
            Text(String),
        }
        match PercentRepr::deserialize(deserializer)? {
            PercentRepr::Number(number) => Self::new(number),
            PercentRepr::Text(text) => text.parse(),
        }
        .map_err(de::Error::custom)
    }
}

impl JsonSchema for Percent {
    fn schema_name() -> Cow<'static, str> {
        "Percent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 16,
            "x-kubernetes-validations": [{
                "rule": "string(self).matches('^([0-9]{1,2}([.][0-9]+)?|100)%?$')",
                "message": "must be a percentage from 0% to 100%, such as 1% or 0.5%",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_exact_to_a_hundredth() {
        for (json, hundredths) in [("0", 0), ("5", 500), ("0.5", 50), ("0.07", 7), ("100", 10_000)] {
            let weight: Weight = serde_json::from_str(json).unwrap();
            assert_eq!(weight.hundredths(), hundredths);
            assert_eq!(serde_json::to_string(&weight).unwrap(), json);
        }
    }

    #[test]
    fn a_weight_outside_the_traffic_is_refused() {
        for json in ["-1", "100.5", "1e9"] {
            assert!(serde_json::from_str::<Weight>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn weights_never_sum_past_all_traffic() {
        let most = Weight::from_hundredths(9_000).unwrap();
        assert_eq!(most.plus(most), Weight::FULL);
        assert_eq!(most.complement().hundredths(), 1_000);
    }

    #[test]
    fn a_percentage_may_be_a_number_or_a_text() {
        for json in ["1", "\"1%\"", "\"1\"", "1.0"] {
            assert_eq!(serde_json::from_str::<Percent>(json).unwrap().fraction(), 0.01);
        }
        for json in ["\"101%\"", "101", "-1", "\"-1%\"", "\"nan%\"", "\"\""] {
            assert!(serde_json::from_str::<Percent>(json).is_err(), "{json}");
        }
    }
}
