//! A control plane in a process of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::CONTROL_PLANE;
use crate::support::{Part, program};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Serin,
    GoControlPlane,
}

/// What it serves, as flags of both.
#[derive(Clone, Default)]
pub struct Scene {
    pub proxies: usize,
    /// Besides `web`.
    pub services: usize,
    /// Of those, called by each proxy.
    pub upstreams: usize,
    /// Proxies that call `web`.
    pub concerned: usize,
    /// Where they listen for requests to it.
    pub listen: String,
    pub primary: String,
    pub canary: String,
}

/// Ends when dropped.
pub struct Running {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    pub address: SocketAddr,
}

impl Contender {
    pub const ALL: [Self; 2] = [Self::Serin, Self::GoControlPlane];

    pub fn name(self) -> &'static str {
        match self {
            Self::Serin => "Serin",
            Self::GoControlPlane => "go-control-plane",
        }
    }

    fn program(self) -> (PathBuf, Option<&'static str>) {
        match self {
            Self::Serin => (std::env::current_exe().expect("this program"), Some(CONTROL_PLANE)),
            Self::GoControlPlane => {
                let path = program(Part::GoControlPlane, "control-plane");
                (path.unwrap_or_else(|error| panic!("{error}")), None)
            }
        }
    }

    pub async fn start(self, scene: &Scene) -> Running {
        let (program, first) = self.program();
        let flag = |name: &str, value: &dyn std::fmt::Display| format!("-{name}={value}");
        let mut command = Command::new(program);
        command.args(first).args([
            flag("proxies", &scene.proxies),
            flag("services", &scene.services),
            flag("upstreams", &scene.upstreams),
            flag("concerned", &scene.concerned),
            flag("listen", &scene.listen),
            flag("primary", &scene.primary),
            flag("canary", &scene.canary),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("a control plane");
        let commands = child.stdin.take().expect("an input");
        let mut answers = BufReader::new(child.stdout.take().expect("an output")).lines();
        let ready = answers.next_line().await.expect("an output").expect("its port");
        let port: u16 = ready.trim_start_matches("ready ").parse().expect("a port");
        Running { child, commands, answers, address: ([127, 0, 0, 1], port).into() }
    }
}

impl Running {
    /// In hundredths of a percent; it is on its way when this returns.
    pub async fn weight(&mut self, canary: u16) {
        self.commands.write_all(format!("weight {canary}\n").as_bytes()).await.expect("it runs");
    }

    /// Until the latest command is done.
    pub async fn done(&mut self) {
        self.answers.next_line().await.expect("it runs").expect("an answer");
    }

    /// In bytes.
    pub fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes * 1024.0
    }

    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("its name");
        // User and system time, in hundredths of a second.
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}
