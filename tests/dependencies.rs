//! The dependencies: their sources, their licences, and those that must not be there.
//!
//! Advisories need a database from outside: `make advisories`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Of SPDX. Each lets a binary be given away with the licence of Serin.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "BlueOak-1.0.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// A second TLS stack or allocator, and what needs a C++ compiler or cmake.
const BANNED: [&str; 8] = [
    "aws-lc-rs",
    "aws-lc-sys",
    "cmake",
    "jemalloc-sys",
    "native-tls",
    "openssl",
    "openssl-sys",
    "tikv-jemalloc-sys",
];

/// Two versions of one of these do not fit together, or double the binary.
const SINGLE: [&str; 11] =
    ["axum", "h2", "hyper", "k8s-openapi", "kube", "prost", "reqwest", "ring", "rustls", "tokio", "tonic"];

/// Name, version, and the source: none for ours.
fn locked() -> Vec<(String, String, Option<String>)> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")))?;
        Some(line.trim_matches('"').to_owned())
    };
    let blocks = include_str!("../Cargo.lock").split("[[package]]").skip(1);
    let package = |block: &str| {
        let field = |key| value(block, key).expect("a package of Cargo.lock");
        (field("name"), field("version"), value(block, "source"))
    };
    blocks.map(package).collect()
}

#[test]
fn dependencies_are_from_one_registry_and_pinned_by_a_checksum() {
    let ours = ["kube-local", "serin", "serin-core", "work-queue"];
    let mut sources = BTreeSet::new();
    for (name, version, source) in locked() {
        match source {
            None => assert!(ours.contains(&name.as_str()), "{name} is of a folder and not in this workspace"),
            Some(source) => {
                assert!(source.starts_with("registry+"), "{name} {version} is from {source}");
                sources.insert(source);
            }
        }
    }
    assert_eq!(sources.len(), 1, "{sources:?}");
    let checksums =
        include_str!("../Cargo.lock").lines().filter(|line| line.starts_with("checksum = ")).count();
    assert_eq!(checksums, locked().len() - ours.len());
}

#[test]
fn what_is_banned_is_not_there_and_what_must_be_single_is() {
    let mut versions = BTreeMap::<String, Vec<String>>::new();
    for (name, version, _) in locked() {
        versions.entry(name).or_default().push(version);
    }
    for name in BANNED {
        assert!(!versions.contains_key(name), "{name} is among the dependencies: cargo tree --invert {name}");
    }
    for name in SINGLE {
        let found = versions.get(name).map_or(&[][..], Vec::as_slice);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
    }
}

#[test]
fn every_licence_is_allowed() {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc");
    let rustc = String::from_utf8(rustc.stdout).expect("text");
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    // Those of other platforms need not be downloaded.
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 300, "{}", packages.len());
    for package in packages {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or_default());
        assert!(is_allowed(licence), "{name}: the licence {licence:?} is not in the list of this test");
    }
}

/// One choice of an expression is allowed. `/` is the old way to write `OR`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut words = expression.replace('(', " ( ").replace(')', " ) ");
    words.push(' ');
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut at = 0;
    let allowed = either(&words, &mut at);
    allowed && at == words.len()
}

/// `a OR b`, of which each side is `a AND b`.
fn either(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = both(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        allowed |= both(words, at);
    }
    allowed
}

fn both(words: &[&str], at: &mut usize) -> bool {
    let mut allowed = term(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        allowed &= term(words, at);
    }
    allowed
}

fn term(words: &[&str], at: &mut usize) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let allowed = either(words, at);
        *at += 1;
        return allowed && words.get(*at - 1) == Some(&")");
    }
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
        return words.get(*at - 1).is_some_and(|with| ALLOWED.contains(&&*format!("{word} WITH {with}")));
    }
    ALLOWED.contains(&word)
}

#[test]
fn a_licence_is_allowed_if_one_of_its_choices_is() {
    for allowed in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "(GPL-3.0 OR MIT) AND ISC",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR AGPL-3.0) AND MIT", "GPL-2.0 WITH MIT"] {
        assert!(!is_allowed(refused), "{refused}");
    }
}
