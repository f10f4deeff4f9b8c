//! `serin version`: of this program, and whether the cluster's definitions are its own.

use std::collections::BTreeSet;
use std::process::ExitCode;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::connect::ClusterArgs;
use crate::api;

/// Show the version, and compare the cluster's definitions with those of this program
///
/// With --check-crds the exit code is 0 if all definitions are the same, 3 if one is
/// missing or differs, and 1 if they cannot be read.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Compare the definitions of the cluster with those of this program
    #[arg(long)]
    check_crds: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// A definition is missing or differs.
const DIFFERENT: u8 = 3;

/// Paths that a line shows.
const MAX_PATHS: usize = 3;

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    println!("serin {}", env!("CARGO_PKG_VERSION"));
    if !args.check_crds {
        return Ok(ExitCode::SUCCESS);
    }
    super::runtime()?.block_on(async {
        let connection = args.cluster.connect().await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(connection.client.clone());
        let mut differing = 0;
        for own in api::crds() {
            let name = own.name_any();
            let found = definitions.get_opt(&name).await;
            let found = found.map_err(|error| connection.error(&format!("read the definition {name}"), &error))?;
            let difference = match &found {
                None => Some("missing".to_owned()),
                Some(found) => difference(&own, found),
            };
            differing += usize::from(difference.is_some());
            println!("{name}: {}", difference.as_deref().unwrap_or("same"));
        }
        if differing == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        println!(
            "{differing} of the definitions are not those of this program: upgrade the chart, or run `serin crds | kubectl \
             apply --server-side --force-conflicts -f -`"
        );
        Ok(ExitCode::from(DIFFERENT))
    })
}

/// What the cluster serves differs, in the words of its fields; defaults of the API server do not.
fn difference(own: &CustomResourceDefinition, found: &CustomResourceDefinition) -> Option<String> {
    let (ours, theirs) = (json!(own.spec.versions), json!(found.spec.versions));
    if ours == theirs {
        return None;
    }
    let (ours, theirs) = (fields(&ours), fields(&theirs));
    let list = |paths: Vec<&String>| {
        let more = if paths.len() > MAX_PATHS { ", …" } else { "" };
        let shown: Vec<&str> = paths.into_iter().take(MAX_PATHS).map(String::as_str).collect();
        format!("{}{more}", shown.join(", "))
    };
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (ours.difference(&theirs).collect(), theirs.difference(&ours).collect());
    Some(match (missing.is_empty(), unknown.is_empty()) {
        (true, true) => "differs in descriptions, validation or columns".to_owned(),
        (false, true) => format!("older: it has no {}", list(missing)),
        (true, false) => format!("newer: this program knows no {}", list(unknown)),
        (false, false) => format!("differs: it has no {}, and has {}", list(missing), list(unknown)),
    })
}

/// Paths of all fields of the schemas, such as `spec.analysis.interval`.
fn fields(versions: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for version in versions.as_array().into_iter().flatten() {
        collect(&version["schema"]["openAPIV3Schema"], "", &mut found);
    }
    found
}

fn collect(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(field, &path, found);
        found.insert(path);
    }
    for inner in [&schema["items"], &schema["additionalProperties"]] {
        if inner.is_object() {
            collect(inner, path, found);
        }
    }
}
