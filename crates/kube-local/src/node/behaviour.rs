//! The behaviour of a container, from its image tag and environment.
//!
//! A tag is a version and, after it, any number of traits joined by `-`:
//!
//! | tag               | environment          | meaning                                          |
//! |-------------------|----------------------|--------------------------------------------------|
//! | `v3-errors-2`     | `ERROR_RATE=0.02`    | 2 % of requests fail with 500                    |
//! | `v4-slow`         | `LATENCY_P99=800ms`  | most requests are slow, one in a hundred slower  |
//! | `v4-slow-2s`      | `LATENCY_P99=2s`     | the same, with another 99th percentile           |
//! |                   | `LATENCY=20ms`       | the median (exact, if no percentile is given)    |
//! | `v5-crash`        | `CRASH_LOOP=true`    | exits with 1 as soon as it has started           |
//! | `v6-never-ready`  | `NEVER_READY=true`   | serves, but `/healthz` returns 503               |
//! | `v7-delay-3s`     | `START_DELAY=3s`     | serves (or crashes) only after three seconds     |
//!
//! Anything else in a tag belongs to the version: `1.2.0-rc.1`. The environment
//! overrides the tag. An invalid value is an error, as a kubelet does not start a
//! container that it cannot configure.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// The image without registry and tag.
    pub name: String,
    pub version: String,
    /// Between 0 and 1.
    pub error_rate: f64,
    pub latency: Latency,
    pub start_delay: Duration,
    pub never_ready: bool,
    pub crash_loop: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    pub median: Duration,
    /// Spread log-normally around the median; without it, every request takes the median.
    pub p99: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value} is not {expected}")]
pub struct BehaviourError {
    pub name: &'static str,
    pub value: String,
    pub expected: &'static str,
}

const DEFAULT_SLOW_LATENCY: Duration = Duration::from_millis(800);

impl Behaviour {
    pub fn of(image: &str, environment: &BTreeMap<String, String>) -> Result<Behaviour, BehaviourError> {
        let mut behaviour = Behaviour::of_image(image);
        let setting =
            |name| environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        if let Some(value) = setting("ERROR_RATE") {
            let rate = rate(value).ok_or_else(|| {
                behaviour_error("ERROR_RATE", value, "a fraction from 0 to 1 or a percentage")
            })?;
            behaviour.error_rate = rate;
        }
        let length = |name| match setting(name) {
            Some(value) => duration(value)
                .ok_or_else(|| behaviour_error(name, value, "a duration such as 20ms or 3s"))
                .map(Some),
            None => Ok(None),
        };
        if let Some(p99) = length("LATENCY_P99")? {
            behaviour.latency = Latency::with_p99(p99);
        }
        if let Some(median) = length("LATENCY")? {
            behaviour.latency.median = median;
        }
        if let Some(delay) = length("START_DELAY")? {
            behaviour.start_delay = delay;
        }
        let truth = |name, otherwise| match setting(name) {
            Some("true" | "1" | "yes") => Ok(true),
            Some("false" | "0" | "no") => Ok(false),
            Some(value) => Err(behaviour_error(name, value, "true or false")),
            None => Ok(otherwise),
        };
        behaviour.never_ready = truth("NEVER_READY", behaviour.never_ready)?;
        behaviour.crash_loop = truth("CRASH_LOOP", behaviour.crash_loop)?;
        Ok(behaviour)
    }

    fn of_image(image: &str) -> Behaviour {
        let last = image.rsplit('/').next().unwrap_or(image);
        let last = last.split('@').next().unwrap_or(last);
        let (name, tag) = last.split_once(':').unwrap_or((last, "latest"));
        let mut behaviour = Behaviour {
            name: name.to_owned(),
            version: String::new(),
            error_rate: 0.0,
            latency: Latency::default(),
            start_delay: Duration::ZERO,
            never_ready: false,
            crash_loop: false,
        };
        let mut version: Vec<&str> = Vec::new();
        let mut words = tag.split('-').peekable();
        while let Some(word) = words.next() {
            let next = words.peek().copied();
            // A trait that needs a value belongs to the version without it.
            match (word, next.and_then(percent), next.and_then(duration)) {
                ("errors", Some(rate), _) => {
                    behaviour.error_rate = rate;
                    words.next();
                }
                ("slow", _, Some(p99)) => {
                    behaviour.latency = Latency::with_p99(p99);
                    words.next();
                }
                ("slow", _, None) => behaviour.latency = Latency::with_p99(DEFAULT_SLOW_LATENCY),
                ("delay", _, Some(delay)) => {
                    behaviour.start_delay = delay;
                    words.next();
                }
                ("crash", ..) => behaviour.crash_loop = true,
                ("never", ..) if next == Some("ready") => {
                    behaviour.never_ready = true;
                    words.next();
                }
                _ => version.push(word),
            }
        }
        behaviour.version = version.join("-");
        behaviour
    }
}

impl Latency {
    fn with_p99(p99: Duration) -> Latency {
        Latency { median: p99 / 4, p99: Some(p99) }
    }

    /// The latency of one request; `normal` is drawn from the standard normal distribution.
    pub fn sample(&self, normal: f64) -> Duration {
        /// The 99th percentile of the standard normal distribution.
        const Z99: f64 = 2.326_347_874;
        match self.p99 {
            Some(p99) if p99 > self.median && !self.median.is_zero() => {
                let spread = (p99.as_secs_f64() / self.median.as_secs_f64()).ln() / Z99;
                self.median.mul_f64((normal * spread).exp().min(1e3))
            }
            _ => self.median,
        }
    }
}

/// `20ms`, `1.5s`, `2m`.
pub fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

fn rate(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(number) => percent(number),
        None => text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate)),
    }
}

fn percent(text: &str) -> Option<f64> {
    text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(|percent: f64| percent / 100.0)
}

fn behaviour_error(name: &'static str, value: &str, expected: &'static str) -> BehaviourError {
    BehaviourError { name, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(image: &str, environment: &[(&str, &str)]) -> Result<Behaviour, BehaviourError> {
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Behaviour::of(image, &environment)
    }

    #[test]
    fn a_plain_tag_is_healthy() {
        let behaviour = of("ghcr.io:443/team/podinfo:6.0.1-rc.1", &[]).unwrap();
        assert_eq!((behaviour.name.as_str(), behaviour.version.as_str()), ("podinfo", "6.0.1-rc.1"));
        assert_eq!((behaviour.error_rate, behaviour.latency.sample(3.0)), (0.0, Duration::ZERO));
        assert!(!behaviour.crash_loop && !behaviour.never_ready);
    }

    #[test]
    fn an_image_without_tag_is_the_latest() {
        assert_eq!(of("app", &[]).unwrap().version, "latest");
        assert_eq!(of("app@sha256:abc", &[]).unwrap().name, "app");
    }

    #[test]
    fn traits_follow_the_version_and_combine() {
        let behaviour = of("app:v3-errors-2.5-slow-1s-delay-3s", &[]).unwrap();
        assert_eq!((behaviour.version.as_str(), behaviour.error_rate), ("v3", 0.025));
        assert_eq!(behaviour.latency.p99, Some(Duration::from_secs(1)));
        assert_eq!(behaviour.start_delay, Duration::from_secs(3));
        assert!(of("app:v5-crash", &[]).unwrap().crash_loop);
        assert!(of("app:v6-never-ready", &[]).unwrap().never_ready);
        assert_eq!(of("app:v4-slow", &[]).unwrap().latency.p99, Some(DEFAULT_SLOW_LATENCY));
    }

    #[test]
    fn the_environment_wins_over_the_tag() {
        let behaviour =
            of("app:v3-errors-2-crash", &[("ERROR_RATE", "10%"), ("CRASH_LOOP", "false")]).unwrap();
        assert_eq!((behaviour.error_rate, behaviour.crash_loop), (0.1, false));
    }

    #[test]
    fn an_unparsable_value_is_refused() {
        let error = of("app:v1", &[("ERROR_RATE", "many")]).unwrap_err();
        assert_eq!(error.to_string(), "ERROR_RATE=many is not a fraction from 0 to 1 or a percentage");
        assert!(of("app:v1", &[("LATENCY", "20")]).is_err());
        assert!(of("app:v1", &[("ERROR_RATE", "2")]).is_err());
    }

    #[test]
    fn one_request_in_a_hundred_is_slower_than_the_99th_percentile() {
        let latency = of("app:v1", &[("LATENCY", "20ms"), ("LATENCY_P99", "800ms")]).unwrap().latency;
        assert_eq!(latency.sample(0.0), Duration::from_millis(20));
        assert_eq!(latency.sample(2.326_347_874).as_millis(), 800);
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(duration("20"), None);
        assert_eq!(duration("-1s"), None);
        assert_eq!(duration("ms"), None);
    }
}
