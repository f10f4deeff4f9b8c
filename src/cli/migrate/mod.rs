//! `serin migrate`: manifests of other tools as Serin's, and Canaries of a running Flagger.

mod live;
mod writes;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use super::connect::ClusterArgs;
use crate::migrate::{Migration, migrate};
use live::Scope;

/// Convert manifests of Flagger and Argo Rollouts
///
/// Flagger's Canary, MetricTemplate and AlertProvider keep their text; a Rollout
/// becomes a Deployment and a Canary, and each metric of Argo's AnalysisTemplates
/// a template. What has no equal is named in a comment above its object, and on
/// standard error. Nothing is applied, and no cluster is read.
///
/// With --live the Canaries of a running Flagger are taken over: Flagger is scaled
/// down, and its primaries, Services and routes become Serin's, with their
/// weights. No weight moves and no release starts; one that is under way goes on
/// at its step. Flagger's Canaries stay, suspended, until --finish removes them;
/// until then --undo gives everything back.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Files, or - for standard input; a Rollout needs its Services and templates in the
    /// same file
    #[arg(value_name = "FILE", required_unless_present_any = ["live", "undo", "finish"])]
    files: Vec<PathBuf>,

    /// Take over the Canaries of a running Flagger
    #[arg(long, conflicts_with_all = ["files", "dir"])]
    live: bool,

    /// Give back to Flagger what --live took over
    #[arg(long, conflicts_with_all = ["files", "dir", "live", "finish"])]
    undo: bool,

    /// Remove Flagger's Canaries, once --live has taken them over
    #[arg(long, conflicts_with_all = ["files", "dir", "live"])]
    finish: bool,

    /// Show each write, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Namespace whose Canaries are taken over [default: all]
    #[arg(short, long)]
    namespace: Option<String>,

    /// Flagger's Deployment, if its labels do not tell
    #[arg(long, value_name = "NAMESPACE/NAME")]
    flagger: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,

    /// Write each file into this folder under its own name, instead of all to standard
    /// output
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  serin migrate canary.yaml > new.yaml
  cat rollout.yaml service.yaml | serin migrate - | serin lint -
  serin migrate flagger/*.yaml --dir serin/
  serin migrate --live --dry-run        each write, and none is done
  serin migrate --live                  take over
  serin migrate --undo                  and back
  serin migrate --finish                remove Flagger's Canaries";

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.live || args.undo || args.finish {
        return super::runtime()?.block_on(run_live(args));
    }
    let mut texts = Vec::new();
    for path in &args.files {
        let mut text = String::new();
        match path.as_os_str() == "-" {
            true => std::io::stdin().read_to_string(&mut text).map(drop),
            false => std::fs::read_to_string(path).map(|read| text = read),
        }
        .with_context(|| format!("read {}", path.display()))?;
        let migrated = migrate(&text).with_context(|| path.display().to_string())?;
        texts.push((path, migrated));
    }
    let mut converted = 0;
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
    }
    for (path, Migration { text, converted: count, notes }) in &texts {
        converted += count;
        for note in notes {
            eprintln!("{}: {note}", path.display());
        }
        match &args.dir {
            None => {
                let separator = if std::ptr::eq(*path, texts[0].0) { "" } else { "---\n" };
                print!("{separator}{text}");
            }
            Some(dir) => {
                let name = path.file_name().with_context(|| format!("{} has no name", path.display()))?;
                let target = dir.join(name);
                // By another spelling it may be the input.
                let place = |path: &std::path::Path| path.canonicalize().ok();
                let is_input = place(&target).is_some_and(|target| place(path) == Some(target));
                ensure!(!is_input, "{} would be overwritten; choose another --dir", path.display());
                let mut file = std::fs::File::create(&target)?;
                file.write_all(text.as_bytes()).with_context(|| format!("write {}", target.display()))?;
            }
        }
    }
    let notes: usize = texts.iter().map(|(_, one)| one.notes.len()).sum();
    eprintln!("{converted} objects converted, {notes} notes; check them with serin lint");
    Ok(())
}

async fn run_live(args: Args) -> anyhow::Result<()> {
    let connection = args.cluster.connect().await?;
    let scope = Scope { namespace: args.namespace, flagger: args.flagger };
    let mut found = live::find(&connection, &scope).await?;
    let writes = match (args.undo, args.finish) {
        (true, _) => live::undo(&connection, &found).await?,
        (_, true) => live::finish(&connection, &found).await?,
        _ => {
            // What cannot be taken over is found before anything is changed.
            let writes = live::take_over(&connection, &found).await?;
            match live::stop_flagger(&found) {
                None => writes,
                Some(stop) if args.dry_run => std::iter::once(stop).chain(writes).collect(),
                Some(stop) => {
                    println!("{stop}");
                    stop.perform(&connection).await?;
                    found = live::find(&connection, &scope).await?;
                    match live::take_over(&connection, &found).await {
                        Ok(writes) => writes,
                        Err(why) => {
                            stop.revert().perform(&connection).await?;
                            return Err(why.context("Flagger runs again"));
                        }
                    }
                }
            }
        }
    };
    for write in &writes {
        println!("{write}");
        if !args.dry_run {
            write.perform(&connection).await?;
        }
    }
    match (args.dry_run, args.live) {
        (true, _) => println!("# {} writes, none of them done", writes.len()),
        (_, true) => println!(
            "# {} Canaries are Serin's; serin migrate --undo gives them back, --finish removes Flagger's",
            found.canaries.len()
        ),
        _ => println!("# {} writes done", writes.len()),
    }
    Ok(())
}
