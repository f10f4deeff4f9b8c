//! The pages of `docs/`: links lead somewhere, lists are complete, generated pages are those of
//! the program, manifests are accepted, commands exist, and the first release works.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use regex::Regex;
use serin::lint::{Linter, Options, Severity, Source};
use support::{Child, Folder, Part};

const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

/// Enough for a machine that also compiles.
const TIMEOUT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Markdown file below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = entries
        .flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    found.sort();
    found
}

fn pages() -> Vec<PathBuf> {
    let mut pages = below(&root().join("docs"));
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "charts/serin/README.md"]
    {
        pages.push(root().join(name));
    }
    pages
}

/// The fenced blocks of a language, with the line that each begins at.
fn blocks(page: &Path, language: &str) -> Vec<(usize, String)> {
    let text = read(page);
    let mut found = Vec::new();
    let mut block: Option<(usize, String)> = None;
    for (line, text) in text.lines().enumerate() {
        match &mut block {
            None if text.trim() == format!("```{language}") => block = Some((line + 2, String::new())),
            None => {}
            Some(_) if text.trim() == "```" => found.extend(block.take()),
            Some((_, lines)) => {
                lines.push_str(text);
                lines.push('\n');
            }
        }
    }
    found
}

/// As GitHub makes them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept: String =
            title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).collect();
        kept.replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").expect("a pattern");
    let (mut broken, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = read(&page);
        for target in link.captures_iter(&text).map(|found| found[1].to_owned()) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match file.is_empty() {
                true => page.clone(),
                false => page.parent().expect("a folder").join(file),
            };
            let leads = file.exists() && (anchor.is_empty() || anchors(&read(&file)).contains(anchor));
            if !leads {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(seen > 20, "{seen} links");
}

#[test]
fn every_reason_of_the_engine_is_explained() {
    let source = read(&root().join("crates/serin-core/src/engine/report.rs"));
    let codes = source.split("pub fn code(&self)").nth(1).expect("the codes of reasons");
    let codes = codes.split("\n    }\n").next().expect("their end");
    let code = Regex::new(r#"=> "([A-Za-z]+)""#).expect("a pattern");
    let codes: BTreeSet<String> = code.captures_iter(codes).map(|found| found[1].to_owned()).collect();
    assert!(codes.len() > 40, "{codes:?}");
    let page = read(&root().join("docs/waiting.md"));
    let row = Regex::new(r"(?m)^\| ([A-Z][A-Za-z]+) \|").expect("a pattern");
    let explained: BTreeSet<String> = row.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert_eq!(explained, codes, "docs/waiting.md and the reasons of the engine differ");
}

/// From the README, over any number of pages.
#[test]
fn every_page_is_reached_from_the_readme() {
    let link = Regex::new(r"\]\(([^)\s#]+)").expect("a pattern");
    let mut reached = BTreeSet::from([root().join("README.md")]);
    let mut next: Vec<PathBuf> = reached.iter().cloned().collect();
    while let Some(page) = next.pop() {
        for target in link.captures_iter(&read(&page)).map(|found| found[1].to_owned()) {
            let Ok(file) = page.parent().expect("a folder").join(target).canonicalize() else { continue };
            if file.extension().is_some_and(|end| end == "md") && reached.insert(file.clone()) {
                next.push(file);
            }
        }
    }
    let docs = below(&root().join("docs")).into_iter().map(|page| page.canonicalize().expect("a page"));
    let missing: Vec<PathBuf> = docs.filter(|page| !reached.contains(page)).collect();
    assert!(missing.is_empty(), "no page leads to {missing:?}");
}

/// `UPDATE_DOCS=1 cargo test --test docs` writes these pages.
#[test]
fn generated_pages_are_those_of_the_program() {
    for (page, arguments) in [
        ("docs/reference/definitions.md", ["reference", "definitions"]),
        ("docs/reference/commands.md", ["reference", "commands"]),
        ("docs/lint.md", ["lint", "--codes"]),
    ] {
        let output = Command::new(PROGRAM).args(arguments).output().expect("the program");
        let expected = String::from_utf8(output.stdout).expect("text");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(root().join(page), &expected).expect("a page");
        }
        assert!(read(&root().join(page)) == expected, "{page} differs from `serin {}`", arguments.join(" "));
        assert!(expected.lines().count() > 50, "{page}: {expected}");
    }
}

#[test]
fn every_series_has_a_row() {
    let page = read(&root().join("docs/reference/metrics.md"));
    let name = Regex::new(r"`(serin_[a-z_]+)").expect("a pattern");
    let rows = page.lines().filter(|line| line.starts_with('|')).collect::<Vec<_>>().join("\n");
    let documented: BTreeSet<String> = name.captures_iter(&rows).map(|found| found[1].to_owned()).collect();
    let family = Regex::new(r#""(serin(?:_[a-z_]+)?)""#).expect("a pattern");
    let mut written = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("src/server")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let source = read(&path);
        written.extend(family.captures_iter(&source).map(|found| found[1].to_owned()));
    }
    // Counters and information are declared without their suffix.
    let is_documented = |name: &String| {
        ["", "_total", "_info"].iter().any(|end| documented.contains(&format!("{name}{end}")))
    };
    let missing: Vec<&String> = written.iter().filter(|name| !is_documented(name)).collect();
    assert!(missing.is_empty(), "docs/reference/metrics.md lacks {missing:?}");
    let is_written = |name: &&String| {
        !["", "_total", "_info"].iter().any(|end| written.contains(name.trim_end_matches(end)))
    };
    let gone: Vec<&String> = documented.iter().filter(is_written).collect();
    assert!(gone.is_empty(), "no source writes {gone:?}");
    assert!(written.len() > 15, "{written:?}");
}

#[tokio::test]
async fn every_manifest_is_accepted() {
    let mut sources = Vec::new();
    for page in pages() {
        for (line, text) in blocks(&page, "yaml") {
            let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text)
                .unwrap_or_else(|error| panic!("{}:{line}: {error}", page.display()));
            // Excerpts, and configurations of other programs.
            if documents.iter().all(|document| document["apiVersion"].is_string()) {
                sources.push(Source { name: format!("{}:{line}", page.display()), text });
            }
        }
    }
    for entry in std::fs::read_dir(root().join("docs/examples")).expect("a folder") {
        let path = entry.expect("an entry").path();
        sources.push(Source { name: path.display().to_string(), text: read(&path) });
    }
    assert!(sources.len() > 15, "{} manifests", sources.len());
    let linter = Linter::new().await.expect("the definitions");
    // One by one: pages use the same names.
    for source in sources {
        let options = Options { namespace: "default".to_owned(), ..Options::default() };
        let found = linter.lint(std::slice::from_ref(&source), &options).await.expect("a working linter");
        let errors: Vec<String> = found
            .iter()
            .filter(|finding| finding.code.severity() == Severity::Error)
            .map(ToString::to_string)
            .collect();
        assert!(errors.is_empty(), "{}", errors.join("\n"));
    }
}

/// `kubectl` reads flow mappings more strictly than we do.
#[test]
fn kubectl_reads_every_manifest() {
    let kubectl = support::program(Part::Kubernetes, "kubectl").expect("kubectl");
    let mut seen = 0;
    for page in pages() {
        for (line, text) in blocks(&page, "yaml") {
            if !text.contains("apiVersion:") {
                continue;
            }
            let folder = Folder::new("manifest");
            folder.write("manifest.yaml", &text);
            let output = Command::new(&kubectl)
                .args(["label", "--local", "tested=true", "--output=name", "--filename"])
                .arg(folder.join("manifest.yaml"))
                .output()
                .expect("kubectl");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{}:{line}: {error}", page.display());
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen} manifests");
}

/// The commands of a console block, without their output; a line that ends in a backslash
/// continues.
fn commands(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    joined.lines().filter_map(|line| Some(line.strip_prefix("$ ")?.to_owned())).collect()
}

/// Every subcommand and flag that the pages use exists: `--help` after them is understood.
#[test]
fn every_command_of_ours_exists() {
    let mut seen = 0;
    let word = Regex::new(r#""[^"]*"|\S+"#).expect("a pattern");
    for page in pages() {
        for (line, block) in blocks(&page, "console") {
            for command in commands(&block) {
                for part in command.split('|') {
                    let words: Vec<&str> =
                        word.find_iter(part).map(|found| found.as_str().trim_matches('"')).collect();
                    let Some(at) = words.iter().position(|word| *word == "serin" || word.ends_with("/serin"))
                    else {
                        continue;
                    };
                    if at > 0 {
                        continue;
                    }
                    let arguments = words[at + 1..].iter().take_while(|word| !["&", ">"].contains(word));
                    let arguments: Vec<&str> = arguments.copied().collect();
                    let output =
                        Command::new(PROGRAM).args(&arguments).arg("--help").output().expect("the program");
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    assert!(output.status.success(), "{}:{line}: {command}\n{said}", page.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 20, "{seen} commands");
}

/// `docs/first-release.md`, as its reader runs it: `serin local`, `serin run` and the real
/// kubectl.
#[tokio::test]
async fn the_first_release_works() {
    let folder = Folder::new("first-release");
    let kubeconfig = folder.join("kubeconfig");
    let local = ["local".as_ref(), "--kubeconfig".as_ref(), kubeconfig.as_os_str()];
    let mut local = Child::start(folder.path(), PROGRAM.as_ref(), local);
    let began = Instant::now();
    while !local.tail().contains("export KUBECONFIG=") {
        assert!(!local.has_ended() && began.elapsed() < TIMEOUT, "serin local: {}", local.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let kubectl = support::program(Part::Kubernetes, "kubectl").expect("kubectl");
    let program = Path::new(PROGRAM);
    let path =
        [program.parent(), kubectl.parent()].map(|folder| folder.expect("a folder").display().to_string());
    let path = format!("{}:{}", path.join(":"), std::env::var("PATH").unwrap_or_default());
    let mut controller = None;
    let mut ran = Vec::new();
    for (_, block) in blocks(&root().join("docs/first-release.md"), "console") {
        for command in commands(&block) {
            match command.as_str() {
                "cargo build" | "target/debug/serin local" | "export PATH=$PWD/target/debug:$PATH" => {}
                "serin run &" => {
                    let arguments = ["run".as_ref(), "--kubeconfig".as_ref(), kubeconfig.as_os_str()];
                    controller = Some(Child::start(folder.path(), program, arguments));
                }
                _ => {
                    let mut shell = tokio::process::Command::new("sh");
                    shell.args(["-c", &command]).current_dir(root()).env("KUBECONFIG", &kubeconfig);
                    let output = tokio::time::timeout(TIMEOUT, shell.env("PATH", &path).output());
                    let output = output.await.expect("it ends").expect("a shell");
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let log = controller.as_ref().map(Child::tail).unwrap_or_default();
                    let (out, err) = (text(&output.stdout), text(&output.stderr));
                    assert!(output.status.success(), "{command}: {out}{err}\n{log}");
                    ran.push((command, out));
                }
            }
        }
    }
    let (_, history) = ran.last().expect("commands");
    assert!(history.contains("v2") && history.to_lowercase().contains("rolled"), "{history}");
    assert!(ran.len() > 10, "{} commands", ran.len());
}
