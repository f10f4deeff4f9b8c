//! Logs of the containers of a node: what each program answered, and its last words.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use work_queue::clock::Clock;

/// Lines of one life of a container that are kept.
const MAX_LINES: usize = 2_000;

/// Namespace, pod, container.
type ContainerKey = (String, String, String);

/// Of all containers; clones share it.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<HashMap<ContainerKey, Arc<Mutex<Lives>>>>>);

/// The present life of a container and the one before.
#[derive(Default)]
struct Lives {
    current: Life,
    previous: Option<Life>,
}

#[derive(Default)]
struct Life {
    /// Lines that were dropped.
    dropped: u64,
    lines: VecDeque<(Timestamp, String)>,
}

/// The writer of one container.
#[derive(Clone)]
pub struct Log {
    lives: Arc<Mutex<Lives>>,
    clock: Clock,
}

/// Some lines of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excerpt {
    /// Of the life before the last restart.
    pub previous: bool,
    /// Lines before this number were read already.
    pub after: u64,
    /// Only the last of them.
    pub tail: Option<usize>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
}

impl Logs {
    /// Begins a life of a container.
    pub fn begin(&self, namespace: &str, pod: &str, container: &str, clock: Clock) -> Log {
        let key = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        let lives = self.0.lock().entry(key).or_default().clone();
        {
            let mut lives = lives.lock();
            let before = std::mem::take(&mut lives.current);
            if !before.lines.is_empty() {
                lives.previous = Some(before);
            }
        }
        Log { lives, clock }
    }

    /// Forgets a pod.
    pub fn remove(&self, namespace: &str, pod: &str) {
        self.0.lock().retain(|(in_namespace, of_pod, _), _| {
            (in_namespace.as_str(), of_pod.as_str()) != (namespace, pod)
        });
    }

    /// The lines, and the number of the line after them; none if there is no such life.
    pub fn read(&self, key: (&str, &str, &str), excerpt: Excerpt) -> Option<(String, u64)> {
        let key = (key.0.to_owned(), key.1.to_owned(), key.2.to_owned());
        let lives = self.0.lock().get(&key)?.clone();
        let lives = lives.lock();
        let life = if excerpt.previous { lives.previous.as_ref()? } else { &lives.current };
        let skipped = usize::try_from(excerpt.after.saturating_sub(life.dropped)).unwrap_or(usize::MAX);
        let from = skipped.max(life.lines.len().saturating_sub(excerpt.tail.unwrap_or(usize::MAX)));
        let mut text = String::new();
        for (at, line) in life.lines.iter().skip(from) {
            if excerpt.since.is_some_and(|since| *at < since) {
                continue;
            }
            if excerpt.timestamps {
                text.push_str(&format!("{at} "));
            }
            text.push_str(line);
            text.push('\n');
        }
        Some((text, life.dropped + life.lines.len() as u64))
    }
}

impl Log {
    pub fn line(&self, line: String) {
        let at = self.clock.now();
        let mut lives = self.lives.lock();
        let life = &mut lives.current;
        if life.lines.len() == MAX_LINES {
            life.lines.pop_front();
            life.dropped += 1;
        }
        life.lines.push_back((at, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_keeps_the_log_of_the_life_before() {
        let (logs, clock) = (Logs::default(), Clock::system());
        let key = ("shop", "web-1", "web");
        let first = logs.begin(key.0, key.1, key.2, clock);
        first.line("one".to_owned());
        first.line("two".to_owned());
        let read = |excerpt| logs.read(key, excerpt);
        assert_eq!(read(Excerpt::default()), Some(("one\ntwo\n".to_owned(), 2)));
        assert_eq!(read(Excerpt { tail: Some(1), ..Excerpt::default() }), Some(("two\n".to_owned(), 2)));
        assert_eq!(read(Excerpt { after: 2, ..Excerpt::default() }), Some((String::new(), 2)));
        assert_eq!(read(Excerpt { previous: true, ..Excerpt::default() }), None);
        logs.begin(key.0, key.1, key.2, clock).line("three".to_owned());
        assert_eq!(read(Excerpt::default()), Some(("three\n".to_owned(), 1)));
        assert_eq!(
            read(Excerpt { previous: true, ..Excerpt::default() }),
            Some(("one\ntwo\n".to_owned(), 2))
        );
        logs.remove("shop", "web-1");
        assert_eq!(read(Excerpt::default()), None);
    }

    #[test]
    fn a_long_log_loses_its_oldest_lines() {
        let logs = Logs::default();
        let log = logs.begin("shop", "web-1", "web", Clock::system());
        for n in 0..=MAX_LINES {
            log.line(format!("line {n}"));
        }
        let read = |after| logs.read(("shop", "web-1", "web"), Excerpt { after, ..Excerpt::default() });
        let (text, next) = read(0).unwrap();
        assert_eq!((text.lines().next(), next), (Some("line 1"), MAX_LINES as u64 + 1));
        assert_eq!(read(MAX_LINES as u64).unwrap().0, format!("line {MAX_LINES}\n"));
    }
}
