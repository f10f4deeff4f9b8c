//! Numbers in messages.

/// `19,000`
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `3.1 %`, with as many decimals as a share near none or all needs to show.
pub(crate) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let decimals = match percent.min(100.0 - percent) {
        edge if edge >= 0.1 => 1,
        edge if edge >= 0.01 => 2,
        _ => 3,
    };
    format!("{} %", trimmed(format!("{percent:.decimals$}")))
}

/// At most three decimals.
pub(crate) fn number(value: f64) -> String {
    trimmed(format!("{value:.3}"))
}

/// Without decimals that are zero.
fn trimmed(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// `250 ms`, `2.5 s`
pub(crate) fn duration(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", number(micros as f64 / 1e3)),
        _ => format!("{} s", number(micros as f64 / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_messages() {
        assert_eq!(
            [0, 999, 1_000, 19_000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "19,000", "1,234,567"]
        );
        assert_eq!(
            [0.0, 0.031, 0.005, 0.00042, 0.000012, 0.99997, 1.0].map(percent),
            ["0 %", "3.1 %", "0.5 %", "0.04 %", "0.001 %", "99.997 %", "100 %"]
        );
        assert_eq!([1.5, 99.0, 0.25, -3.0, f64::INFINITY].map(number), ["1.5", "99", "0.25", "-3", "inf"]);
        assert_eq!([500, 5_000, 250_000, 2_500_000].map(duration), ["500 µs", "5 ms", "250 ms", "2.5 s"]);
    }
}
