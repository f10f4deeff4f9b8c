//! The engine, the judge and the model of discovery are pure: no async, no clock, no
//! client. A release can then be replayed from what was seen, byte for byte.

use std::{fs, path::Path};

/// Words that the pure rooms must not contain, and what each would bring in.
const FORBIDDEN: [(&str, &str); 16] = [
    ("async ", "async"),
    (".await", "async"),
    ("tokio", "async"),
    ("futures::", "async"),
    ("::now(", "a clock"),
    ("Instant", "a clock"),
    ("SystemTime", "a clock"),
    ("thread::sleep", "a clock"),
    ("kube::Client", "a client"),
    ("kube::Api", "a client"),
    ("Client::", "a client"),
    ("reqwest", "a client"),
    ("std::net", "a client"),
    ("std::fs", "a file"),
    ("std::env", "the environment"),
    ("rand::", "chance"),
];

/// The rooms of this house that a pure room may use.
const PURE_MODULES: [&str; 3] = ["api", "engine", "analysis"];

#[test]
fn pure_modules_use_no_async_no_clock_and_no_client() {
    let mut files = 0;
    let mut found = Vec::new();
    for room in [
        "crates/serin-core/src/engine",
        "crates/serin-core/src/analysis",
        "crates/serin-core/src/simulation",
        "src/discovery/model",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(room);
        each_source(&folder, &mut |path, text| {
            files += 1;
            found.extend(impurities(text).into_iter().map(|what| format!("{}: {what}", path.display())));
        });
    }
    assert!(files > 15, "only {files} sources were read");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_impurity_is_found_anywhere_in_a_file() {
    for line in [
        "async fn look() {}",
        "let now = Timestamp::now();",
        "let began = std::time::Instant::now();",
        "fn watch(client: kube::Client) {}",
        "let pods: kube::Api<Pod> = kube::Api::all(client);",
        "use crate::controller::Context;",
        "use crate::{\n    api::{Weight, canary::Phase},\n    routing::Router,\n};",
        "    let got = crate::metrics::read();",
    ] {
        assert!(!impurities(line).is_empty(), "{line}");
    }
    for line in
        ["// async fn is not for us", "let known = status;", "use crate::{api::canary, analysis::Verdict};"]
    {
        assert!(impurities(line).is_empty(), "{line}");
    }
}

fn impurities(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let words = code.iter().enumerate().flat_map(|(at, line)| {
        let words = FORBIDDEN.iter().filter(|(word, _)| line.contains(word));
        words.map(move |(word, brings)| format!("line {}: `{word}` brings in {brings}", at + 1))
    });
    let strangers = modules_used(&code.join("\n"))
        .into_iter()
        .filter(|room| !PURE_MODULES.contains(&room.as_str()))
        .map(|room| format!("`crate::{room}` is no neighbour of a pure room"));
    words.chain(strangers).collect()
}

/// The first name after each `crate::`, and each first name in `crate::{…}`.
fn modules_used(code: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut rooms = Vec::new();
    for path in code.split("crate::").skip(1) {
        let Some(list) = path.strip_prefix('{') else {
            rooms.push(name(path));
            continue;
        };
        let mut depth = 0;
        let mut starts = true;
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' => starts = true,
                c if depth == 0 && starts && c.is_alphabetic() => {
                    rooms.push(name(&list[at..]));
                    starts = false;
                }
                _ => {}
            }
        }
    }
    rooms
}

fn each_source(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_source(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
