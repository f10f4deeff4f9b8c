//! What the process takes of the system.

use std::path::Path;

use crate::stage::LIMIT;
use crate::support::{Child, Folder, eventually, free_port};

/// systemd, and many container runtimes, start processes with 1024 of them.
#[tokio::test]
async fn connections_of_proxies_are_not_limited_by_the_soft_limit_of_open_files() {
    let (dir, logs) = (Folder::new("limits"), Folder::new("limits-logs"));
    let listen = format!("--xds-listen=127.0.0.1:{}", free_port());
    let folder = dir.path().display().to_string();
    let limited = r#"ulimit -Sn 256; exec "$@""#;
    let arguments = ["-c", limited, "sh", env!("CARGO_BIN_EXE_serin"), "standalone", &folder, &listen];
    let mut process = Child::start(logs.path(), Path::new("/bin/sh"), arguments);
    let raised = async || {
        assert!(!process.has_ended(), "{}", process.tail());
        let id = process.process().unwrap_or_default();
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        // Before that it is the shell.
        let is_serin = read("cmdline").starts_with(env!("CARGO_BIN_EXE_serin"));
        let limits = read("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
        let soft = line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(0_u64);
        is_serin && soft > 256
    };
    eventually("the limit is raised", LIMIT, raised).await;
}
