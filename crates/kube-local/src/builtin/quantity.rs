//! Quantities (`500m`, `1.5Gi`) in the canonical form that the API server stores.

use serde_json::Value;

/// Rewrites a quantity to its canonical form; other values are unchanged.
pub(super) fn canonicalize(value: &mut Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return,
    };
    if let Some(canonical) = canonical(&text) {
        *value = canonical.into();
    }
}

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// Whole units of the largest suffix that leaves no fraction.
fn canonical(text: &str) -> Option<String> {
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.').map_or(0, |i| i + 1);
    let (number, suffix) = text.split_at(end);
    let (number, scientific) = number
        .split_once(['e', 'E'])
        .map_or((number, 0), |(number, exponent)| (number, exponent.parse().unwrap_or(i32::MIN)));
    let (sign, digits) =
        number.strip_prefix('-').map_or(("", number.trim_start_matches('+')), |rest| ("-", rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut mantissa: u128 = format!("{whole}{fraction}").parse().ok()?;
    let mut exponent = scientific.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    if mantissa == 0 {
        return Some("0".to_owned());
    }
    if let Some(power) = BINARY.iter().skip(1).position(|binary| *binary == suffix) {
        mantissa = mantissa.checked_mul(1024_u128.checked_pow(power as u32 + 1)?)?;
        if exponent < 0 {
            let divisor = 10_u128.checked_pow(exponent.unsigned_abs())?;
            // A fraction of a byte is written in decimals.
            if mantissa.is_multiple_of(divisor) {
                mantissa /= divisor;
                exponent = 0;
            }
        }
        if exponent == 0 {
            let mut power = 0;
            while power + 1 < BINARY.len() && mantissa.is_multiple_of(1024) {
                mantissa /= 1024;
                power += 1;
            }
            return Some(format!("{sign}{mantissa}{}", BINARY[power]));
        }
    } else {
        exponent += DECIMAL.iter().find(|(name, _)| *name == suffix)?.1;
    }
    while mantissa.is_multiple_of(10) {
        mantissa /= 10;
        exponent += 1;
    }
    let (suffix, power) =
        DECIMAL.iter().rev().find(|(_, power)| *power <= exponent).copied().unwrap_or(DECIMAL[0]);
    let scale = 10_u128.checked_pow(u32::try_from(exponent - power).unwrap_or_default())?;
    Some(format!("{sign}{}{suffix}", mantissa.checked_mul(scale)?))
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn a_quantity_has_one_spelling() {
        for (given, kept) in [
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000Ki", "1000Ki"),
            ("100000", "100k"),
            ("12e6", "12M"),
            ("0", "0"),
            ("-2.50", "-2500m"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(kept), "{given}");
        }
        assert_eq!(canonical("lots"), None);
    }
}
