//! Live output: watches the Canary's status, keeps the journal, and draws.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Output;
use super::load::{Arm, RequestTotals, Traffic};
use super::manifests::Manifests;
use super::stage::Stage;
use super::story::{RELEASES, Release, ReleaseResult, WeightChange};
use super::view::{self, JournalEntry, Scene};
use crate::api::CanaryStatus;
use crate::api::canary::status::{MetricStatus, Outcome, Phase};
use crate::api::condition::READY;
use crate::cli::paint::{Line, Terminal, Tone, paint, plain, print};

/// Interval of redraws.
const FRAME: Duration = Duration::from_millis(120);

/// So that a viewer sees the end of one release before the next begins.
const PAUSE_BETWEEN_RELEASES: Duration = Duration::from_millis(1500);

/// Two pods and a Service usually take a second.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(60);

/// Condition reason of a Canary with an invalid spec.
const INVALID_SPEC: &str = "InvalidSpec";

/// Condition reason during a step; its message repeats that of the step's start.
const ANALYZING: &str = "Analyzing";

/// Columns of plain lines.
const WIDTH: usize = 100;

pub struct Show {
    medium: Medium,
    start: Instant,
    name: String,
    kubeconfig: String,
    /// kubectl commands to try.
    suggestions: [String; 2],
    statuses: BoxStream<'static, CanaryStatus>,
    status: CanaryStatus,
    traffic: Traffic,
    journal: Vec<JournalEntry>,
    /// Version by revision hash.
    versions: HashMap<String, String>,
    primary: &'static str,
    running: Option<RunningRelease>,
    ended: Vec<ReleaseResult>,
}

enum Medium {
    Live(Terminal),
    Lines,
    Json,
}

struct RunningRelease {
    release: &'static Release,
    number: usize,
    start: Instant,
    totals_before: RequestTotals,
    /// Entries of `status.history` before it.
    history_len: usize,
    steps: Vec<WeightChange>,
}

impl Show {
    pub fn new(output: Output, stage: &Stage, manifests: &Manifests) -> Self {
        let medium = match output {
            Output::Json => Medium::Json,
            Output::Text => Terminal::open().map_or(Medium::Lines, Medium::Live),
        };
        let kubeconfig = stage.kubeconfig.display().to_string();
        if let Medium::Lines = medium {
            print(&format!(
                "To watch with kubectl: export KUBECONFIG={kubeconfig}; kubectl get canaries -w\n"
            ));
        }
        Self {
            medium,
            start: Instant::now(),
            name: format!("{}/{}", manifests.namespace, manifests.canary),
            kubeconfig,
            suggestions: suggestions(manifests),
            statuses: stage.watch_status(manifests),
            status: CanaryStatus::default(),
            traffic: Traffic::default(),
            journal: Vec::new(),
            versions: HashMap::new(),
            primary: "v1",
            running: None,
            ended: Vec::new(),
        }
    }

    pub async fn wait_until_initialized(&mut self) -> anyhow::Result<()> {
        let initialized = self.run_until(|show| show.status.phase == Phase::Initialized);
        match timeout(INITIALIZE_TIMEOUT, initialized).await {
            Ok(outcome) => outcome,
            Err(_) => bail!(
                "the Canary was not ready for releases within {INITIALIZE_TIMEOUT:?}: {}",
                self.status.message.as_deref().unwrap_or("it has no status")
            ),
        }
    }

    /// Call once the load generator runs.
    pub fn set_traffic(&mut self, traffic: Traffic) {
        self.traffic = traffic;
    }

    pub async fn pause(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PAUSE_BETWEEN_RELEASES;
        self.run_until(|_| Instant::now() >= until).await
    }

    /// Call before changing the image.
    pub fn start_release(&mut self, release: &'static Release) {
        self.log(Tone::Bold, format!("Releasing {}, which {}.", release.version, release.description));
        self.status.metrics.clear();
        self.traffic.reset_recent();
        self.running = Some(RunningRelease {
            release,
            number: self.ended.len() + 1,
            start: Instant::now(),
            totals_before: self.traffic.totals(),
            history_len: self.status.history.len(),
            steps: Vec::new(),
        });
    }

    /// Until the release has ended and all traffic goes to the primary.
    pub async fn wait_until_ended(&mut self) -> anyhow::Result<()> {
        self.run_until(|show| {
            let before = show.running.as_ref().map_or(0, |running| running.history_len);
            show.status.history.len() > before
                && show.status.canary_weight.hundredths() == 0
                && matches!(show.status.phase, Phase::Succeeded | Phase::Failed)
        })
        .await?;
        let (Some(running), Some(past)) = (self.running.take(), self.status.history.first()) else {
            bail!("a release ended that had not started");
        };
        // The history entry of a promotion has no reason.
        let reason = match past.outcome {
            Outcome::Promoted => self.status.message.as_ref().unwrap_or(&past.reason),
            Outcome::RolledBack | Outcome::Aborted | Outcome::Superseded => &past.reason,
        };
        let ended = ReleaseResult {
            version: running.release.version,
            outcome: past.outcome,
            as_expected: past.outcome == running.release.expected_outcome,
            reason: self.replace_revisions(reason),
            steps: running.steps,
            totals: self.traffic.totals() - running.totals_before,
            duration: running.start.elapsed(),
        };
        if ended.outcome == Outcome::Promoted {
            self.primary = ended.version;
        }
        if let Medium::Json = self.medium {
            print(&format!("{}\n", ended.json()?));
        }
        self.ended.push(ended);
        Ok(())
    }

    /// Call after the last release.
    pub fn print_summary(&mut self, keeps_running: bool) {
        self.draw();
        let mut lines = view::summary(&self.ended, self.traffic.totals(), self.start.elapsed(), WIDTH);
        if keeps_running {
            lines.push(plain(" Everything keeps running until Ctrl-C. In another terminal:"));
            lines.push(plain(format!("   export KUBECONFIG={}", self.kubeconfig)));
            lines.extend(self.suggestions.iter().map(|suggestion| plain(format!("   {suggestion}"))));
        } else {
            lines.push(plain(" To explore it with kubectl, keep it running: serin demo --keep"));
        }
        match &mut self.medium {
            Medium::Live(terminal) => {
                terminal.detach();
                print_all(&lines, terminal.colours());
            }
            Medium::Lines => print_all(&lines, false),
            Medium::Json if keeps_running => eprintln!("export KUBECONFIG={}", self.kubeconfig),
            Medium::Json => {}
        }
    }

    /// For `--keep`: the user may release any version, so none is shown.
    pub async fn run_forever(&mut self) -> anyhow::Result<()> {
        self.primary = "";
        self.run_until(|_| false).await
    }

    /// Fails unless every release ended as expected.
    pub fn check_outcomes(&self) -> anyhow::Result<()> {
        ensure!(self.ended.len() == RELEASES.len(), "not all releases ended");
        for (ended, release) in self.ended.iter().zip(&RELEASES) {
            let (actual, expected) =
                (view::outcome_label(ended.outcome), view::outcome_label(release.expected_outcome));
            ensure!(
                ended.as_expected,
                "{} was {actual} and should have been {expected}: {}",
                ended.version,
                ended.reason
            );
        }
        Ok(())
    }

    /// Applies status changes and draws until `done`.
    async fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut frames = interval(FRAME);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !done(self) {
            tokio::select! {
                status = self.statuses.next() => match status {
                    Some(status) => self.apply_status(status)?,
                    None => bail!("the watch of the Canary ended"),
                },
                _ = frames.tick() => self.draw(),
            }
        }
        self.draw();
        Ok(())
    }

    fn apply_status(&mut self, mut status: CanaryStatus) -> anyhow::Result<()> {
        // Entries without a time are carried over from an earlier release.
        status.metrics.retain(|metric| metric.at.is_some());
        let ready = status.conditions.iter().find(|condition| condition.type_ == READY);
        let reason = ready.map(|ready| ready.reason.clone()).unwrap_or_default();
        // With --keep the user may edit the Canary: an invalid spec is no failure of the demo.
        if reason == INVALID_SPEC && self.ended.len() < RELEASES.len() {
            bail!("{}", status.message.unwrap_or(reason));
        }
        let before = std::mem::replace(&mut self.status, status);
        if let Some(running) = &mut self.running {
            if let Some(candidate) =
                self.status.revisions.as_ref().and_then(|revisions| revisions.candidate.clone())
                && self.status.release.is_some()
            {
                self.versions.insert(candidate, running.release.version.to_owned());
            }
            let weight = self.status.canary_weight;
            if weight > before.canary_weight {
                running.steps.push(WeightChange { weight, at: running.start.elapsed() });
            }
        }
        let changed = self.status.message.clone().filter(|message| before.message.as_ref() != Some(message));
        if let Medium::Lines = self.medium {
            self.log_verdicts(&before);
        }
        if let Some(message) = changed.filter(|_| reason != ANALYZING) {
            let tone = match self.status.phase {
                Phase::Failed => Tone::Bad,
                Phase::Succeeded => Tone::Good,
                _ => Tone::Plain,
            };
            self.log(tone, self.replace_revisions(&message));
        }
        Ok(())
    }

    /// For plain lines; the view shows verdicts in a place of their own.
    fn log_verdicts(&mut self, before: &CanaryStatus) {
        let is_new = |metric: &&MetricStatus| !before.metrics.iter().any(|old| old.reason == metric.reason);
        let sentence =
            |metric: &MetricStatus| format!("{} {:?}: {}", metric.name, metric.verdict, metric.reason);
        let sentences: Vec<String> = self.status.metrics.iter().filter(is_new).map(sentence).collect();
        for sentence in sentences {
            self.log(Tone::Plain, sentence);
        }
    }

    /// Shows `v3` instead of a hash.
    fn replace_revisions(&self, sentence: &str) -> String {
        let versions = self.versions.iter();
        versions.fold(sentence.to_owned(), |text, (revision, version)| text.replace(revision, version))
    }

    fn log(&mut self, tone: Tone, sentence: String) {
        let entry = JournalEntry { at: self.start.elapsed(), tone, message: sentence };
        if let Medium::Lines = self.medium {
            print_all(&view::journal_lines(&entry, WIDTH), false);
        }
        self.journal.push(entry);
    }

    fn draw(&mut self) {
        let message = self.replace_revisions(self.status.message.as_deref().unwrap_or("Starting."));
        let Medium::Live(terminal) = &mut self.medium else { return };
        let (width, height) = terminal.size();
        let scene = Scene {
            name: &self.name,
            elapsed: self.start.elapsed(),
            primary: self.primary,
            canary: self.running.as_ref().map_or("", |running| running.release.version),
            release: self.running.as_ref().map(|running| (running.release, running.number)),
            releases: RELEASES.len(),
            status: &self.status,
            message: &message,
            recent: [Arm::Primary, Arm::Canary].map(|arm| self.traffic.recent(arm)),
            totals: self.traffic.totals(),
            journal: &self.journal,
            kubeconfig: &self.kubeconfig,
        };
        let lines = view::render(&scene, width, height, terminal.colours());
        terminal.draw(&lines);
    }
}

fn suggestions(manifests: &Manifests) -> [String; 2] {
    let Manifests { namespace, canary, deployment, container, .. } = manifests;
    let image = manifests.image_with_tag("v5-errors-10");
    [
        format!("kubectl -n {namespace} describe canary {canary}"),
        format!("kubectl -n {namespace} set image deployment/{deployment} {container}={image}"),
    ]
}

fn print_all(lines: &[Line], colours: bool) {
    let text: String = lines.iter().map(|line| paint(line, usize::MAX, colours) + "\n").collect();
    print(&text);
}
