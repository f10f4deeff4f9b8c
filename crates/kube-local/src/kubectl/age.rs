//! Durations as `kubectl get` shows them.

use jiff::{SignedDuration, Timestamp};

/// Two or three significant figures: `95s`, `3m20s`, `5h12m`, `4d3h`, `2y40d`.
pub(super) fn human_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |whole: i64, unit: &str, part: i64, part_unit: &str| match part {
        0 => format!("{whole}{unit}"),
        part => format!("{whole}{unit}{part}{part_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 8 * 365 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The age of an RFC 3339 time; `<unknown>` if it is invalid.
pub(crate) fn since(time: Option<&str>, now: Timestamp) -> String {
    match time.and_then(|time| time.parse::<Timestamp>().ok()) {
        Some(time) => human_duration(now.duration_since(time)),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_kubectl() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (5 * 3600 + 12 * 60, "5h12m"),
            (47 * 3600, "47h"),
            (99 * 3600, "4d3h"),
            (8 * 86400, "8d"),
            (730 * 86400, "2y"),
            (770 * 86400, "2y40d"),
            (3000 * 86400, "8y"),
        ] {
            assert_eq!(human_duration(SignedDuration::from_secs(seconds)), text);
        }
    }
}
