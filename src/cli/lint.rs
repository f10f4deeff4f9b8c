//! `serin lint`: manifests that will not do what they say, found before they are applied.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, TypeMeta};

use super::connect::ClusterArgs;
use crate::api::canary::Provider;
use crate::lint::{self, Code, Severity, Source, report};

/// Look for mistakes in manifests, without a cluster or in one
///
/// Canaries and AnalysisTemplates are checked as the API server and the controller
/// check them, with the same sentences; PromQL is parsed, templates are filled in,
/// references and ports are looked up in the files. Then follows what is valid and
/// hardly meant: 0.99 for 99 %, windows shorter than two scrapes, too little
/// traffic to judge.
///
/// A folder stands for all YAML files below it, - for standard input. With -A the objects
/// are those of the cluster.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Files and folders
    #[arg(value_name = "FILE", required_unless_present_any = ["codes", "explain", "all_namespaces"])]
    files: Vec<PathBuf>,

    /// Check what is in the cluster, in all namespaces
    #[arg(short = 'A', long, conflicts_with = "files")]
    all_namespaces: bool,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// Text for people, JSON, SARIF for code hosts, or annotations of GitHub Actions
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    output: Format,

    /// Fail on warnings too
    #[arg(long)]
    strict: bool,

    /// Namespace of objects that name none
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// The controller's --provider, for Canaries without spec.provider
    #[arg(long, value_name = "NAME", value_parser = super::run::provider)]
    provider: Option<Provider>,

    /// The controller's --metrics-server: with it, built-in metrics are its queries
    #[arg(long, value_name = "URL")]
    metrics_server: Option<String>,

    /// Requests a second that the Service gets: finds steps that have too few to judge
    #[arg(long, value_name = "NUMBER")]
    rps: Option<f64>,

    /// Explain a code, such as SER101
    #[arg(long, value_name = "CODE", conflicts_with = "files")]
    explain: Option<String>,

    /// Print all codes as Markdown
    #[arg(long, conflicts_with_all = ["files", "explain"])]
    codes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
    Github,
}

const EXAMPLES: &str = "\
Examples:
  serin lint deploy/                    all YAML files of a folder
  helm template . | serin lint -        what a chart renders
  serin lint canary.yaml --rps 3        is that enough traffic to judge the steps?
  serin lint -o sarif . > lint.sarif    for a code host
  serin lint -A                         what is in the cluster
  serin lint --explain SER401

Exit codes: 0 no errors, 1 errors (with --strict warnings too), 2 files that cannot be read.";

/// Files that could not be read.
const EXIT_UNREADABLE: u8 = 2;

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.codes {
        print!("{}", report::codes_page());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(code) = &args.explain {
        return explain(code).map(|()| ExitCode::SUCCESS);
    }
    ensure!(args.rps.is_none_or(|rps| rps > 0.0), "--rps must be more than 0");
    let runtime = super::runtime()?;
    let read = match args.all_namespaces {
        true => runtime.block_on(read_cluster(args.cluster)),
        false => read_all(&args.files),
    };
    let sources = match read {
        Ok(sources) => sources,
        Err(error) => {
            eprintln!("serin: {}", super::one_line(&error));
            return Ok(ExitCode::from(EXIT_UNREADABLE));
        }
    };
    let options = lint::Options {
        namespace: args.namespace,
        provider: args.provider,
        metrics_server: args.metrics_server,
        requests_per_second: args.rps,
    };
    let findings = runtime.block_on(async {
        let linter = lint::Linter::new().await?;
        linter.lint(&sources, &options).await
    })?;
    match args.output {
        Format::Text => print!("{}", report::text(&findings, super::colours())),
        Format::Json => println!("{:#}", report::json(&findings)),
        Format::Sarif => println!("{:#}", report::sarif(&findings)),
        Format::Github => print!("{}", report::github(&findings)),
    }
    let fails = |severity: Severity| severity == Severity::Error || args.strict;
    Ok(match findings.iter().any(|finding| fails(finding.code.severity())) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// The kinds that findings are about, and those that Canaries refer to.
const READ_KINDS: [(&str, &str, &str); 8] = [
    ("serin.dev", "v1alpha1", "Canary"),
    ("serin.dev", "v1alpha1", "AnalysisTemplate"),
    ("serin.dev", "v1alpha1", "ClusterAnalysisTemplate"),
    ("serin.dev", "v1alpha1", "AlertProvider"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "DaemonSet"),
    ("", "v1", "Service"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
];

/// Objects of a cluster are read a page at a time.
const PAGE: u32 = 500;

/// One source for each object: its name takes the place of a file's.
async fn read_cluster(cluster: ClusterArgs) -> anyhow::Result<Vec<Source>> {
    let connection = cluster.connect().await?;
    let mut sources = Vec::new();
    for (group, version, kind) in READ_KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(connection.client.clone(), &resource);
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await;
            let list = list.map_err(|error| connection.error(&format!("list {kind} objects"), &error))?;
            for mut object in list.items {
                object.types =
                    Some(TypeMeta { api_version: resource.api_version.clone(), kind: kind.to_owned() });
                object.metadata.managed_fields = None;
                let namespace = object.namespace().map(|name| format!("{name}/")).unwrap_or_default();
                let name = format!("{kind} {namespace}{}", object.name_any());
                let text = serde_saphyr::to_string(&object).with_context(|| format!("read {name}"))?;
                sources.push(Source { name, text });
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
                None => break,
            }
        }
    }
    Ok(sources)
}

fn explain(name: &str) -> anyhow::Result<()> {
    let code = Code::ALL.iter().find(|code| code.as_str().eq_ignore_ascii_case(name));
    let code = code.with_context(|| {
        let all: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        format!("there is no {name}; the codes are {}", all.join(", "))
    })?;
    println!("{code} ({}): {}\n\n{}", code.severity(), code.title(), code.explanation());
    Ok(())
}

fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("read standard input")?;
            sources.push(Source { name: "-".to_owned(), text });
            continue;
        }
        let mut files = Vec::new();
        yaml_files(path, &mut files).with_context(|| format!("read {}", path.display()))?;
        ensure!(!files.is_empty(), "{} has no file that ends in .yaml or .yml", path.display());
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            sources.push(Source { name: file.display().to_string(), text });
        }
    }
    Ok(sources)
}

/// A file itself, or the YAML files below a folder, by name.
fn yaml_files(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !std::fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries =
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    for entry in entries {
        let hidden = entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let is_yaml = entry.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if !hidden && (entry.is_dir() || is_yaml) {
            yaml_files(&entry, files)?;
        }
    }
    Ok(())
}
