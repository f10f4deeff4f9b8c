//! The changes to Flagger's scripts, from `rules.yaml`, made by sed.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::support::Part;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub reason: String,
    pub sed: String,
    /// None: all of them.
    pub scripts: Option<Vec<String>>,
}

pub fn all() -> Vec<Rule> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flagger/rules.yaml");
    let text = std::fs::read_to_string(path).expect("rules.yaml is readable");
    serde_saphyr::from_str(&text).expect("rules.yaml is a list of rules")
}

/// A file of Flagger's folder `test`.
pub fn original(script: &str) -> String {
    let path = Part::Flagger.folder().join("test").join(script);
    let text = std::fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{}: {error}: run `testbed/setup flagger`", path.display()))
}

/// The same with every rule that is for it.
pub fn changed(script: &str) -> String {
    let own =
        |rule: &Rule| rule.scripts.as_ref().is_none_or(|scripts| scripts.iter().any(|named| named == script));
    all().iter().filter(|rule| own(rule)).fold(original(script), |text, rule| rule.apply(&text))
}

impl Rule {
    pub fn apply(&self, text: &str) -> String {
        let mut sed = Command::new("sed");
        sed.args(["-E", "-e", &self.sed]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sed = sed.spawn().expect("sed");
        sed.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("sed reads");
        let output = sed.wait_with_output().expect("sed ends");
        assert!(output.status.success(), "sed refuses {}", self.sed);
        String::from_utf8(output.stdout).expect("text")
    }
}
