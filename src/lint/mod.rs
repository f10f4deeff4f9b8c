//! `serin lint`: manifests in, findings out, without a cluster.
//!
//! ```text
//!   document ─▶ YAML with line numbers
//!   schema   ─▶ the definitions' own rules, by an API server in this process
//!   canary   ─▶ plan, router, queries, references: the code that the controller runs
//!   advice   ─▶ valid, but hardly meant: units, windows, too little traffic
//!   report   ─▶ text, JSON, SARIF, GitHub's annotations
//! ```
//!
//! What the controller would refuse is an error with the same sentence, since it is the
//! same code. An object that other files or the cluster may hold is a warning. Every
//! finding has a [`Code`] that does not change.

mod advice;
mod canary;
mod code;
mod document;
pub mod report;
mod schema;

use std::fmt;

pub use code::{Code, Severity};
pub use document::{Document, Source, parse};

/// Assumptions that a file does not contain.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The namespace of objects that name none.
    pub namespace: String,
    /// `--provider` and `--metrics-server` of the controller.
    pub provider: Option<crate::api::canary::Provider>,
    pub metrics_server: Option<String>,
    /// Requests a second that the Service gets, to tell whether a step has enough of them.
    pub requests_per_second: Option<f64>,
}

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub code: Code,
    /// As in the arguments; `-` for standard input.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// `Canary shop/web`; empty for a file as a whole.
    pub object: String,
    /// What is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, file, line, object, message } = self;
        let colon = if object.is_empty() { "" } else { ": " };
        write!(f, "{file}:{line}: {} {code}: {object}{colon}{message}", code.severity())
    }
}

/// The definitions, loaded once.
pub struct Linter {
    definitions: schema::Definitions,
}

impl Linter {
    pub async fn new() -> Result<Self, schema::SchemaError> {
        Ok(Self { definitions: schema::Definitions::load().await? })
    }

    /// Looks at all documents together: they may refer to each other. In the order of files
    /// and lines.
    pub async fn lint(
        &self,
        sources: &[Source],
        options: &Options,
    ) -> Result<Vec<Finding>, schema::SchemaError> {
        let mut findings = Vec::new();
        let mut valid = Vec::new();
        for source in sources {
            let documents = match parse(source, &options.namespace) {
                Ok(documents) => documents,
                Err(unreadable) => {
                    findings.push(unreadable);
                    continue;
                }
            };
            for document in documents {
                let refused = self.definitions.check(&document).await?;
                if refused.is_empty() {
                    valid.push(document);
                }
                findings.extend(refused);
            }
        }
        canary::check(&valid, options, &mut findings);
        findings.sort_by(|a, b| (&a.file, a.line, a.code).cmp(&(&b.file, b.line, b.code)));
        findings.dedup();
        Ok(findings)
    }
}
