//! An Envoy with the bootstrap of `serin xds bootstrap`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::stage::Stage;
use crate::support::{Child, Folder, Part, free_port, program};

/// Two cores shared with a build are slow.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Ends when dropped.
pub struct Envoy {
    child: Child,
    _folder: Folder,
    port: u16,
}

impl Envoy {
    /// In front of a caller of `web`.
    pub async fn start(stage: &Stage, node: &str) -> Self {
        Self::connected_to(stage.control_plane, &stage.world.namespace, node).await
    }

    pub async fn connected_to(control_plane: u16, namespace: &str, node: &str) -> Self {
        let (port, admin) = (free_port(), free_port());
        let printed = Command::new(Path::new(env!("CARGO_BIN_EXE_serin")))
            .args(["xds", "bootstrap", node, "--control-plane", &format!("127.0.0.1:{control_plane}")])
            .args(["--upstream", &format!("{namespace}/web:80=127.0.0.1:{port}")])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .output()
            .expect("serin runs");
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let folder = Folder::new("envoy");
        folder.write("envoy.yaml", &String::from_utf8(printed.stdout).expect("YAML"));
        let envoy = program(Part::Envoy, "envoy").unwrap_or_else(|error| panic!("{error}"));
        let arguments = ["--config-path", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart"];
        let mut child = Child::start(folder.path(), &envoy, arguments);
        let deadline = Instant::now() + START_TIMEOUT;
        let ready = format!("http://127.0.0.1:{admin}/ready");
        while !reqwest::get(&ready).await.is_ok_and(|answer| answer.status().is_success()) {
            assert!(
                !child.has_ended() && Instant::now() < deadline,
                "Envoy never gets ready; {}",
                child.tail()
            );
            sleep(Duration::from_millis(50)).await;
        }
        Self { child, _folder: folder, port }
    }

    /// Where it listens for requests to `web`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub fn tail(&self) -> String {
        self.child.tail()
    }
}
