//! The workflows and scripts that make a release.

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use support::{Folder, Part, program};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn script(name: &str, arguments: &[&str]) -> Output {
    Command::new(Path::new(ROOT).join("packages").join(name))
        .args(arguments)
        .output()
        .expect("the script runs")
}

#[track_caller]
fn text_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn actionlint_accepts_the_workflows() {
    let actionlint = program(Part::Actionlint, "actionlint").unwrap_or_else(|error| panic!("{error}"));
    let folder = Path::new(ROOT).join(".github/workflows");
    let files: Vec<_> =
        std::fs::read_dir(&folder).expect("workflows").map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    let output = Command::new(&actionlint).arg("-no-color").args(&files).output().expect("actionlint runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // It does look.
    let bad = Folder::new("workflow");
    bad.write(
        "bad.yaml",
        "on: push\njobs: {a: {runs-on: ubuntu-24.04, steps: [{run: 'echo ${{ github.no_such }}'}]}}\n",
    );
    let output = Command::new(actionlint).arg(bad.join("bad.yaml")).output().expect("actionlint runs");
    assert!(!output.status.success());
}

#[test]
fn a_release_needs_one_version_everywhere_and_its_notes() {
    let other = script("version", &["999.0.0"]);
    let error = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && error.contains("the version of Cargo.toml is"), "{error}");
    let none = script("notes", &["999.0.0"]);
    let error = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        !none.status.success() && error.contains("CHANGELOG.md has no section \u{27}## 999.0.0\u{27}"),
        "{error}"
    );
    assert!(text_of(&script("notes", &["Unreleased"])).contains("- "));
}

#[test]
fn the_krew_manifest_names_the_archives_by_their_digests() {
    let folder = Folder::new("archives");
    let names = ["linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"];
    for name in names {
        folder.write(&format!("serin_{name}.tar.gz"), name);
    }
    let base = "https://example.com/o/serin/releases/download/v1.2.3";
    let text = text_of(&script("krew", &["1.2.3", base, &folder.path().display().to_string()]));
    let manifest: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!((&manifest["kind"], &manifest["spec"]["version"]), (&"Plugin".into(), &"v1.2.3".into()));
    assert_eq!(manifest["spec"]["homepage"], "https://example.com/o/serin");
    let platforms = manifest["spec"]["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), names.len());
    for (platform, name) in platforms.iter().zip(names) {
        assert_eq!(platform["uri"], format!("{base}/serin_{name}.tar.gz"));
        let digest = <sha2::Sha256 as sha2::Digest>::digest(name.as_bytes());
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(platform["sha256"], digest);
    }
}
