//! `serin completion` and `serin man`: files for shells and for man, made from the
//! commands themselves.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap_complete::Shell;

/// Print a completion script for a shell
///
///     source <(serin completion bash)                                for this shell
///     serin completion bash > /etc/bash_completion.d/serin           for all
///     serin completion zsh > "${fpath[1]}/_serin"
///     serin completion fish > ~/.config/fish/completions/serin.fish
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct CompletionArgs {
    #[arg(value_enum)]
    shell: Shell,
}

/// Write a man page for every command into a folder
///
///     serin man /usr/local/share/man/man1
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct ManArgs {
    #[arg(value_name = "FOLDER")]
    dir: PathBuf,
}

pub(super) fn completion(mut command: clap::Command, args: CompletionArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "serin", &mut script);
    std::io::stdout().write_all(&script).context("print the script")
}

pub(super) fn man(command: clap::Command, args: ManArgs) -> anyhow::Result<()> {
    let dir = &args.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
    clap_mangen::generate_to(command, dir).with_context(|| format!("write to {}", dir.display()))
}
