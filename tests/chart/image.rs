//! The Dockerfile cannot be built here; the files that it names must exist.

use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The words after an instruction, for each line that has it.
fn instructions<'t>(dockerfile: &'t str, name: &'t str) -> impl Iterator<Item = Vec<&'t str>> {
    let lines = dockerfile.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(|rest| rest.split_whitespace().collect())
}

fn setting<'t>(cargo: &'t str, key: &str) -> &'t str {
    let line = cargo.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix("= "));
    line.unwrap_or_else(|| panic!("{key} in Cargo.toml")).trim_matches('"')
}

#[test]
fn the_image_is_built_from_this_repository() {
    let (dockerfile, cargo) = (read("Dockerfile"), read("Cargo.toml"));
    let first = instructions(&dockerfile, "FROM").next().expect("a stage");
    let rust = setting(&cargo, "rust-version");
    assert!(
        first[0].starts_with(&format!("rust:{rust}-")),
        "{first:?} has the Rust that Cargo.toml asks for"
    );

    let context = instructions(&dockerfile, "COPY").filter(|words| !words[0].starts_with("--from"));
    for words in context {
        let (_, sources) = words.split_last().expect("a destination");
        assert!(sources.iter().all(|source| Path::new(ROOT).join(source).exists()), "{sources:?}");
    }
    for part in ["src", "benches", "Cargo.toml", "Cargo.lock"] {
        assert!(dockerfile.contains(part), "the build needs {part}");
    }
    assert!(dockerfile.contains("cargo build --locked --profile dist") && cargo.contains("[profile.dist]"));
    assert!(dockerfile.contains("/dist/serin") && setting(&cargo, "name") == "serin");
}

#[test]
fn the_image_runs_serin_as_non_root() {
    let dockerfile = read("Dockerfile");
    assert!(dockerfile.contains("ENTRYPOINT [\"serin\"]") && dockerfile.contains("CMD [\"run\"]"));
    // A name would not do: the kubelet cannot tell whether it is root.
    let user = instructions(&dockerfile, "USER").last().expect("a user");
    let id = user[0].split(':').next().and_then(|id| id.parse::<u32>().ok());
    assert!(id.is_some_and(|id| id > 0), "{user:?}");
}
