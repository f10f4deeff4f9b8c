//! moto: Amazon's APIs as others imitate them, on a free loopback port. All
//! services share the address. No test relies on its gaps: it has
//! no percentiles, no metric math, no virtual services, and error codes of its own.

use std::time::{Duration, Instant};

use super::{Child, Folder, Part, free_port, program};

/// Two cores shared with a build are slow; a healthy start takes two seconds.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Ends when dropped; its data is lost.
pub struct Moto {
    child: Child,
    /// After the process that works in it.
    _folder: Folder,
    port: u16,
}

impl Moto {
    pub async fn start() -> Moto {
        let python = program(Part::Moto, "bin/python3").unwrap_or_else(|error| panic!("{error}"));
        let (folder, port) = (Folder::new("moto"), free_port());
        let number = port.to_string();
        let arguments = ["-m", "moto.server", "--host", "127.0.0.1", "--port", &number];
        let mut moto = Moto { child: Child::start(folder.path(), &python, arguments), _folder: folder, port };
        moto.await_ready().await;
        moto
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    async fn await_ready(&mut self) {
        serin::tls::install_crypto_provider();
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let began = Instant::now();
        loop {
            let answer = client.get(format!("{}/moto-api/data.json", self.url())).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            let Self { child, .. } = self;
            assert!(!child.has_ended(), "moto ended while it started; {}", child.tail());
            assert!(
                began.elapsed() < START_TIMEOUT,
                "moto is not ready after {START_TIMEOUT:?}; {}",
                child.tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
