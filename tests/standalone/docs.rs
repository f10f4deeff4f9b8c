//! The commands of docs/standalone.md, as a reader would run them.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::{Folder, Part, free_port, program};

const PAGE: &str = include_str!("../../docs/standalone.md");

/// The blocks of commands, in their order.
fn commands() -> String {
    let mut blocks = Vec::new();
    let mut rest = PAGE;
    while let Some((_, after)) = rest.split_once("```sh\n") {
        let (block, after) = after.split_once("```").expect("a block ends");
        blocks.push(block);
        rest = after;
    }
    blocks.concat()
}

/// Ends what the commands started, also if the test ends before them. They are a process
/// group of their own.
const PREFIX: &str = "set -eu\ntrap 'kill -9 0' EXIT\n\
    (while kill -0 TEST 2>/dev/null; do sleep 1; done; kill -9 0) > /dev/null 2>&1 &\n";

#[test]
fn the_commands_of_the_page_release_a_version() {
    let mut script = PREFIX.replace("TEST", &std::process::id().to_string()) + &commands();
    assert!(script.contains("serin wait web --for promoted"), "the page has the commands");
    for (written, near) in [("18000", "127.0.0.1:"), ("15001", "127.0.0.1:"), ("9901", "127.0.0.1:")] {
        script = script.replace(&format!("{near}{written}"), &format!("{near}{}", free_port()));
    }
    let control_plane =
        script.split("--control-plane ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let listen = format!("serin standalone deploy --xds-listen {}", control_plane.expect("an address"));
    script = script.replace("serin standalone deploy", &listen).replace("8080", &free_port().to_string());
    script.push_str("echo done > ended\n");

    let folder = Folder::new("page");
    let serin = Path::new(env!("CARGO_BIN_EXE_serin")).parent().expect("a folder");
    let envoy = program(Part::Envoy, "envoy").unwrap_or_else(|error| panic!("{error}"));
    let path = std::env::var("PATH").expect("a PATH");
    let path = format!("{}:{}:{path}", serin.display(), envoy.parent().expect("a folder").display());
    let output = |name: &str| std::fs::File::create(folder.join(name)).expect("a file");
    Command::new("bash")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .stdout(output("output"))
        .stderr(output("errors"))
        .process_group(0)
        .status()
        .expect("bash runs");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (output, errors, log) = (read("output"), read("errors"), read("serin.log"));
    assert_eq!(read("ended"), "done\n", "{script}\n{output}\n{errors}\n{log}\n{}", read("envoy.log"));
    let (before, after) = output.split_once("I am v1").expect("v1 answers");
    assert!(!before.contains("I am v2") && after.contains("I am v2"), "{output}");
    assert!(after.contains("promoted"), "{output}");
}
