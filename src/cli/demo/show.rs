//! Live output: watches the Canary's status, keeps the journal, and draws.

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
use crate::cli::paint::{Line, Terminal, Tone, check_reader, paint, plain, print};
use crate::engine::names::name_of;

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

/// Columns of plain lines, and at most those of the summary.
const WIDTH: usize = 80;

pub struct Show {
    medium: Medium,
    start: Instant,
    name: String,
    kubeconfig: String,
    /// A command to try.
    suggestion: String,
    statuses: BoxStream<'static, CanaryStatus>,
    status: CanaryStatus,
    traffic: Traffic,
    journal: Vec<JournalEntry>,
    primary: String,
    /// The API that the hints are about ends with the demo.
    is_over: bool,
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
            suggestion: suggestion(manifests),
            statuses: stage.watch_status(manifests),
            status: CanaryStatus::default(),
            traffic: Traffic::default(),
            journal: Vec::new(),
            primary: "v1".to_owned(),
            is_over: false,
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
            reason: reason.clone(),
            steps: running.steps,
            totals: self.traffic.totals() - running.totals_before,
            duration: running.start.elapsed(),
        };
        if ended.outcome == Outcome::Promoted {
            self.primary = ended.version.to_owned();
        }
        if let Medium::Json = self.medium {
            print(&format!("{}\n", ended.json()?));
        }
        self.ended.push(ended);
        Ok(())
    }

    /// Call after the last release.
    pub fn print_summary(&mut self, keeps_running: bool) {
        self.is_over = !keeps_running;
        self.draw();
        let width = match &self.medium {
            Medium::Live(terminal) => terminal.size().0.min(WIDTH),
            Medium::Lines | Medium::Json => WIDTH,
        };
        let mut lines = view::summary(&self.ended, self.traffic.totals(), self.start.elapsed(), width);
        lines.push(Line::new());
        if keeps_running {
            lines.push(plain(" Everything keeps running; Ctrl-C ends it. Go on in another terminal, with a"));
            lines.push(plain(" version that fails one request in ten:"));
            lines.push(plain(format!("   export KUBECONFIG={}", self.kubeconfig)));
            lines.push(plain(format!("   {}", self.suggestion)));
        } else {
            lines.push(plain(
                " Try next: serin demo --keep, which leaves it running for releases of your own.",
            ));
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

    /// For `--keep`: the user may release any version.
    pub async fn run_forever(&mut self) -> anyhow::Result<()> {
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
            check_reader()?;
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
            self.log(tone, message);
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

    /// The versions of primary and canary: those of the story, and after it those that the
    /// status names.
    fn versions(&self) -> [String; 2] {
        if let Some(running) = &self.running {
            return [self.primary.clone(), running.release.version.to_owned()];
        }
        let tag = |revision: &str| {
            let name = name_of(&self.status, revision);
            name.split_once([':', '@']).map_or(name, |(_, tag)| tag).to_owned()
        };
        let primary = self.status.revisions.as_ref().and_then(|revisions| revisions.primary.as_ref());
        let moves = self.status.canary_weight.hundredths() > 0 || self.status.step.is_some();
        let canary = self.status.release.as_ref().filter(|_| moves);
        [
            primary.map_or_else(|| self.primary.clone(), |revision| tag(revision)),
            canary.map(|release| tag(&release.revision)).unwrap_or_default(),
        ]
    }

    fn log(&mut self, tone: Tone, sentence: String) {
        let entry = JournalEntry { at: self.start.elapsed(), tone, message: sentence };
        if let Medium::Lines = self.medium {
            print_all(&view::journal_lines(&entry, WIDTH), false);
        }
        self.journal.push(entry);
    }

    fn draw(&mut self) {
        let [primary, canary] = self.versions();
        let message = self.status.message.clone().unwrap_or_else(|| "Starting.".to_owned());
        let Medium::Live(terminal) = &mut self.medium else { return };
        let (width, height) = terminal.size();
        let scene = Scene {
            name: &self.name,
            elapsed: self.start.elapsed(),
            primary: &primary,
            canary: &canary,
            release: self.running.as_ref().map(|running| (running.release, running.number)),
            releases: RELEASES.len(),
            status: &self.status,
            message: &message,
            recent: [Arm::Primary, Arm::Canary].map(|arm| self.traffic.recent(arm)),
            totals: self.traffic.totals(),
            journal: &self.journal,
            kubeconfig: (!self.is_over).then_some(&self.kubeconfig),
        };
        let lines = view::render(&scene, width, height);
        terminal.draw(&lines);
    }
}

fn suggestion(manifests: &Manifests) -> String {
    let Manifests { namespace, deployment, container, .. } = manifests;
    let image = manifests.image_with_tag("v5-errors-10");
    let namespace = if namespace == "default" { String::new() } else { format!(" -n {namespace}") };
    format!("kubectl{namespace} set image deployment/{deployment} {container}={image}")
}

fn print_all(lines: &[Line], colours: bool) {
    let text: String = lines.iter().map(|line| paint(line, usize::MAX, colours) + "\n").collect();
    print(&text);
}
