//! Tells what happens while it happens: follows the Canary's status, keeps the
//! journal, and draws.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Output;
use super::load::{Arm, RequestTotals, Traffic};
use super::manifests::Manifests;
use super::paint::{Line, Terminal, Tone, paint, plain, print};
use super::stage::Stage;
use super::story::{RELEASES, Release, ReleaseResult, WeightChange};
use super::view::{self, JournalEntry, Scene};
use crate::api::CanaryStatus;
use crate::api::canary::status::{MetricStatus, Outcome, Phase};
use crate::api::condition::READY;

/// How often the view is drawn.
const FRAME: Duration = Duration::from_millis(120);

/// Between releases, so that a person sees one end before the next begins.
const PAUSE_BETWEEN_RELEASES: Duration = Duration::from_millis(1500);

/// Two pods and a Service take a second.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason of conditions when a Canary cannot be carried out.
const INVALID_SPEC: &str = "InvalidSpec";

/// The reason of conditions while a step lasts. Every step has said so itself.
const ANALYZING: &str = "Analyzing";

/// Columns of lines that are told and not drawn.
const WIDTH: usize = 100;

pub struct Show {
    medium: Medium,
    began: Instant,
    name: String,
    kubeconfig: String,
    /// What somebody could type who looks around.
    suggestions: [String; 2],
    statuses: BoxStream<'static, CanaryStatus>,
    status: CanaryStatus,
    traffic: Traffic,
    journal: Vec<JournalEntry>,
    /// What each revision is called in the story.
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

/// The release under way.
struct RunningRelease {
    release: &'static Release,
    number: usize,
    began: Instant,
    totals_before: RequestTotals,
    /// Releases that had ended before.
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
                "Look around meanwhile: export KUBECONFIG={kubeconfig}; kubectl get canaries -w\n"
            ));
        }
        Self {
            medium,
            began: Instant::now(),
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

    /// What customers see, from now on.
    pub fn set_traffic(&mut self, traffic: Traffic) {
        self.traffic = traffic;
    }

    pub async fn pause(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PAUSE_BETWEEN_RELEASES;
        self.run_until(|_| Instant::now() >= until).await
    }

    /// A release is about to begin.
    pub fn start_release(&mut self, release: &'static Release) {
        self.log(Tone::Bold, format!("Releasing {}, which {}.", release.version, release.description));
        self.status.metrics.clear();
        self.traffic.reset_recent();
        self.running = Some(RunningRelease {
            release,
            number: self.ended.len() + 1,
            began: Instant::now(),
            totals_before: self.traffic.totals(),
            history_len: self.status.history.len(),
            steps: Vec::new(),
        });
    }

    /// Until the release is over and all traffic is home.
    pub async fn wait_until_ended(&mut self) -> anyhow::Result<()> {
        self.run_until(|show| {
            let past = show.running.as_ref().map_or(0, |playing| playing.history_len);
            show.status.history.len() > past
                && show.status.canary_weight.hundredths() == 0
                && matches!(show.status.phase, Phase::Succeeded | Phase::Failed)
        })
        .await?;
        let (Some(playing), Some(past)) = (self.running.take(), self.status.history.first()) else {
            bail!("a release ended that had not begun");
        };
        // History says why it failed; that it did not needs no reason.
        let reason = match past.outcome {
            Outcome::Promoted => self.status.message.as_ref().unwrap_or(&past.reason),
            Outcome::RolledBack | Outcome::Aborted | Outcome::Superseded => &past.reason,
        };
        let ended = ReleaseResult {
            version: playing.release.version,
            outcome: past.outcome,
            as_expected: past.outcome == playing.release.expected_outcome,
            reason: self.replace_revisions(reason),
            steps: playing.steps,
            totals: self.traffic.totals() - playing.totals_before,
            duration: playing.began.elapsed(),
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

    /// All is over.
    pub fn print_summary(&mut self, stays: bool) {
        self.draw();
        let mut lines = view::summary(&self.ended, self.traffic.totals(), self.began.elapsed(), WIDTH);
        if stays {
            lines.push(plain(" Everything stays up until Ctrl-C. In another terminal:"));
            lines.push(plain(format!("   export KUBECONFIG={}", self.kubeconfig)));
            lines.extend(self.suggestions.iter().map(|suggestion| plain(format!("   {suggestion}"))));
        } else {
            lines.push(plain(" To look around with kubectl, let it stay: serin demo --keep"));
        }
        match &mut self.medium {
            Medium::Live(terminal) => {
                terminal.detach();
                print_all(&lines, terminal.colours());
            }
            Medium::Lines => print_all(&lines, false),
            Medium::Json if stays => eprintln!("export KUBECONFIG={}", self.kubeconfig),
            Medium::Json => {}
        }
    }

    /// For ever: somebody looks around, and releases who knows what.
    pub async fn run_forever(&mut self) -> anyhow::Result<()> {
        self.primary = "";
        self.run_until(|_| false).await
    }

    /// Whether all went as it should.
    pub fn check_outcomes(&self) -> anyhow::Result<()> {
        ensure!(self.ended.len() == RELEASES.len(), "not all releases came to an end");
        for (ended, release) in self.ended.iter().zip(&RELEASES) {
            let (is, should) =
                (view::outcome_label(ended.outcome), view::outcome_label(release.expected_outcome));
            ensure!(
                ended.as_expected,
                "{} was {is} and should have been {should}: {}",
                ended.version,
                ended.reason
            );
        }
        Ok(())
    }

    /// Takes in what happens, and draws, until it is enough.
    async fn run_until(&mut self, enough: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut frames = interval(FRAME);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !enough(self) {
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
        // What was learned in another release is no verdict on this one.
        status.metrics.retain(|metric| metric.at.is_some());
        let told = status.conditions.iter().find(|condition| condition.type_ == READY);
        let code = told.map(|ready| ready.reason.clone()).unwrap_or_default();
        // Later, whoever looks around may write whatever they like.
        if code == INVALID_SPEC && self.ended.len() < RELEASES.len() {
            bail!("{}", status.message.unwrap_or(code));
        }
        let before = std::mem::replace(&mut self.status, status);
        if let Some(playing) = &mut self.running {
            if let Some(candidate) =
                self.status.revisions.as_ref().and_then(|revisions| revisions.candidate.clone())
                && self.status.release.is_some()
            {
                self.versions.insert(candidate, playing.release.version.to_owned());
            }
            let weight = self.status.canary_weight;
            if weight > before.canary_weight {
                playing.steps.push(WeightChange { weight, at: playing.began.elapsed() });
            }
        }
        let news = self.status.message.clone().filter(|message| before.message.as_ref() != Some(message));
        if let Medium::Lines = self.medium {
            self.log_verdicts(&before);
        }
        if let Some(message) = news.filter(|_| code != ANALYZING) {
            let tone = match self.status.phase {
                Phase::Failed => Tone::Bad,
                Phase::Succeeded => Tone::Good,
                _ => Tone::Plain,
            };
            self.log(tone, self.replace_revisions(&message));
        }
        Ok(())
    }

    /// The view has a place for them; lines have not.
    fn log_verdicts(&mut self, before: &CanaryStatus) {
        let is_new = |metric: &&MetricStatus| !before.metrics.iter().any(|held| held.reason == metric.reason);
        let sentence =
            |metric: &MetricStatus| format!("{} {:?}: {}", metric.name, metric.verdict, metric.reason);
        let sentences: Vec<String> = self.status.metrics.iter().filter(is_new).map(sentence).collect();
        for sentence in sentences {
            self.log(Tone::Plain, sentence);
        }
    }

    /// People know v3; the API knows a hash.
    fn replace_revisions(&self, sentence: &str) -> String {
        let known = self.versions.iter();
        known.fold(sentence.to_owned(), |text, (revision, version)| text.replace(revision, version))
    }

    fn log(&mut self, tone: Tone, sentence: String) {
        let entry = JournalEntry { at: self.began.elapsed(), tone, message: sentence };
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
            elapsed: self.began.elapsed(),
            primary: self.primary,
            canary: self.running.as_ref().map_or("", |playing| playing.release.version),
            release: self.running.as_ref().map(|playing| (playing.release, playing.number)),
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
