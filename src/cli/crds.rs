//! `serin crds`: the custom resource definitions, as YAML.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::api;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Write one file for each kind into this folder, instead of all to
    /// standard output
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.dir {
        Some(dir) => write_files(&dir),
        None => {
            std::io::stdout().write_all(all()?.as_bytes()).context("print the definitions")?;
            Ok(())
        }
    }
}

/// Every definition with the name of its file.
pub fn files() -> anyhow::Result<Vec<(String, String)>> {
    api::crds().iter().map(|crd| Ok((format!("{}.yaml", crd.spec.names.plural), document(crd)?))).collect()
}

/// Every definition in one stream.
fn all() -> anyhow::Result<String> {
    Ok(files()?.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("---\n"))
}

fn write_files(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
    for (name, text) in files()? {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn document(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(crd)
        .with_context(|| format!("write the definition of {} as YAML", crd.spec.names.kind))?;
    // The YAML writer leaves trailing spaces on empty lines.
    Ok(text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect())
}
