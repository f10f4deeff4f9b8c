//! The two controllers: how each is started, and what the kernel says of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::{self, Child, Cluster, Folder, Part};

pub enum Contender {
    Serin,
    Flagger { program: PathBuf },
}

impl Contender {
    pub fn flagger() -> Contender {
        Contender::Flagger { program: fetched_file(Part::FlaggerController, "flagger") }
    }

    /// Also of its user.
    pub fn name(&self) -> &'static str {
        match self {
            Contender::Serin => "serin",
            Contender::Flagger { .. } => "flagger",
        }
    }

    pub fn api_version(&self) -> &'static str {
        match self {
            Contender::Serin => "serin.dev/v1alpha1",
            Contender::Flagger { .. } => "flagger.app/v1beta1",
        }
    }

    /// Its custom resource definitions.
    pub fn definitions(&self) -> PathBuf {
        match self {
            Contender::Serin => Path::new(env!("CARGO_MANIFEST_DIR")).join("crds"),
            Contender::Flagger { .. } => fetched_file(Part::Flagger, "artifacts/flagger/crd.yaml"),
        }
    }

    pub async fn start(&self, cluster: &Cluster, namespace: &str) -> Process {
        let folder = Folder::new(self.name());
        folder.write("kubeconfig", &cluster.kubeconfig_of(self.name()).to_string());
        let (program, arguments) = match self {
            Contender::Serin => (
                Path::new(env!("CARGO_BIN_EXE_serin")),
                vec![
                    "run".to_owned(),
                    "--kubeconfig=kubeconfig".to_owned(),
                    format!("--namespaces={namespace}"),
                ],
            ),
            Contender::Flagger { program } => (
                program.as_path(),
                vec![
                    "-kubeconfig=kubeconfig".to_owned(),
                    format!("-namespace={namespace}"),
                    "-kubeconfig-qps=5000".to_owned(),
                    "-kubeconfig-burst=5000".to_owned(),
                    "-threadiness=128".to_owned(),
                    "-mesh-provider=smi:v1alpha2".to_owned(),
                    "-log-level=info".to_owned(),
                    format!("-port={}", support::free_port()),
                    "-metrics-server=http://127.0.0.1:9".to_owned(),
                ],
            ),
        };
        let child = Child::start(folder.path(), program, arguments);
        Process::new(child, folder).await
    }
}

/// Where a part of the testbed has a file.
pub fn fetched_file(part: Part, file: &str) -> PathBuf {
    support::program(part, file).unwrap_or_else(|error| panic!("{error}"))
}

/// A controller that runs; it ends when dropped.
pub struct Process {
    /// Before the folder: it works in it.
    child: Child,
    _folder: Folder,
    number: u32,
}

impl Process {
    async fn new(child: Child, folder: Folder) -> Process {
        let began = Instant::now();
        let number = loop {
            match child.process() {
                Some(number) => break number,
                None if began.elapsed() > Duration::from_secs(10) => panic!("{}", child.tail()),
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        Process { child, _folder: folder, number }
    }

    pub fn check(&mut self) {
        if self.child.has_ended() {
            panic!("it ended: {}", self.child.tail());
        }
    }

    /// Processor time so far, its own and the kernel's for it.
    pub fn cpu(&self) -> Duration {
        let text = self.read("stat");
        // The name before it may contain anything, also a parenthesis.
        let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
        let ticks = |index: usize| fields.split_whitespace().nth(index).and_then(|field| field.parse().ok());
        let sum: u64 = [11, 12].into_iter().map(|index| ticks(index).unwrap_or(0u64)).sum();
        // Linux counts a hundred a second, whatever the kernel's own clock.
        Duration::from_millis(sum * 10)
    }

    /// Resident memory in bytes: now, and at most so far.
    pub fn memory(&self) -> (u64, u64) {
        let text = self.read("status");
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        (field("VmRSS:").unwrap_or(0) * 1024, field("VmHWM:").unwrap_or(0) * 1024)
    }

    fn read(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.number);
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}; {}", self.child.tail()))
    }
}
