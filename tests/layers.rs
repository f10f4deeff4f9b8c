//! The import rules of `src/controller`, as its header states them, and of
//! `src/discovery`. A new arrow is a decision: it goes into the table here and there.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Unit → units of the controller that it may import.
const ALLOWED: [(&str, &[&str]); 8] = [
    ("queue::trigger", &[]),
    ("cache", &["queue::trigger"]),
    ("shard", &["queue::trigger"]),
    ("release_limiter", &["queue::trigger"]),
    (
        "context",
        &["queue::trigger", "cache", "shard", "release_limiter", "background", "reconcile::state", "root"],
    ),
    ("background", &["queue::trigger", "cache", "shard", "context"]),
    ("reconcile", &["queue::trigger", "cache", "shard", "release_limiter", "context", "background"]),
    ("queue::dispatcher", &["queue::trigger", "shard", "context", "reconcile"]),
];

#[test]
fn the_controller_imports_along_the_allowed_arrows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controller");
    let allowed = BTreeMap::from(ALLOWED);
    let mut violations = Vec::new();
    let mut files = 0;
    for file in sources(&root) {
        let module = module_of(file.strip_prefix(&root).unwrap());
        let Some(unit) = unit_of(&module) else { continue };
        files += 1;
        let text = fs::read_to_string(&file).unwrap();
        // Unit tests may use anything.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for import in imports(code, &module) {
            let target = target_of(&import);
            let own = unit_of(&module) == unit_of(&import) || import.starts_with(&module);
            if !own && !allowed[unit].iter().any(|allowed| target.starts_with(allowed)) {
                violations.push(format!("{unit} ({}) imports {target}", file.display()));
            }
        }
    }
    assert!(files > 20, "only {files} sources were read");
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Its facts come from the API server, and below `rest` from other APIs; `cli` shows them.
#[test]
fn discovery_imports_no_other_room() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/discovery");
    let files = sources(&root);
    assert!(files.len() > 10, "only {} sources were read", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let model = file.starts_with(root.join("model"));
        for path in text.split("crate::").skip(1) {
            let room: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let shared = ["api", "api_error", "aws", "clock", "error_chain"].contains(&room.as_str());
            let rest = room == "discovery" || shared;
            let allowed = !model && (room == "api_error" || (rest && file.starts_with(root.join("rest"))));
            assert!(allowed, "{} imports crate::{room}", file.display());
        }
        assert!(!text.contains("super::super"), "{} imports from above", file.display());
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let found = |code: &str, module: &str| -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        imports(code, &module).iter().map(|path| path.join("::")).collect()
    };
    assert_eq!(found("use super::store::Store;", "cache::reflector"), ["cache::store::Store"]);
    assert_eq!(found("use crate::controller::context::Context;", "cache"), ["context::Context"]);
    assert_eq!(
        found(
            "use crate::{api::Canary, controller::{context::Context, shard::fence::{Fence, Fenced}}};",
            "cache"
        ),
        ["context::Context", "shard::fence::Fence", "shard::fence::Fenced"]
    );
    assert_eq!(found("use super::super::queue::trigger::*;", "cache::store"), ["queue::trigger::*"]);
    assert_eq!(found("let x = crate::controller::context::now();", "cache"), ["context::now"]);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn module_of(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let parts = path.iter().map(|part| part.to_str().unwrap().to_owned());
    parts.filter(|part| part != "mod").collect()
}

/// None for the root module and for modules that only declare others.
fn unit_of(module: &[String]) -> Option<&'static str> {
    let path = module.join("::");
    ALLOWED.iter().map(|(unit, _)| *unit).find(|unit| path == *unit || path.starts_with(&format!("{unit}::")))
}

/// Items of the root module have no module of their own.
fn target_of(import: &[String]) -> String {
    match unit_of(import) {
        Some(_) => import.join("::"),
        None => "root".to_owned(),
    }
}

/// Paths below `crate::controller` that `use` statements and expressions name.
fn imports(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for statement in code.split("use ").skip(1) {
        let tree = statement.split(';').next().unwrap_or_default();
        for path in flatten(tree) {
            found.extend(resolve(&path, module));
        }
    }
    for path in code.split("crate::controller::").skip(1) {
        let path: String = path.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
        let path: Vec<String> = path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if !path.is_empty() && !found.contains(&path) {
            found.push(path);
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

/// `a::{b, c::d}` → `a::b`, `a::c::d`.
fn flatten(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let name = tree.split_whitespace().next().unwrap_or_default();
        return vec![name.to_owned()];
    };
    let (prefix, inner) = (&tree[..open], &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())]);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(flatten).map(|path| format!("{prefix}{path}")).collect()
}

/// The path below `crate::controller`, if it is there.
fn resolve(path: &str, module: &[String]) -> Option<Vec<String>> {
    let parts: Vec<&str> = path.split("::").map(str::trim).filter(|part| !part.is_empty()).collect();
    let mut base = module.to_vec();
    let rest = match *parts.first()? {
        "crate" if parts.get(1) == Some(&"controller") => {
            base.clear();
            &parts[2..]
        }
        "self" => &parts[1..],
        "super" => {
            let ups = parts.iter().take_while(|part| **part == "super").count();
            base.truncate(base.len().checked_sub(ups)?);
            &parts[ups..]
        }
        _ => return None,
    };
    base.extend(rest.iter().filter(|part| **part != "self").map(|part| (*part).to_owned()));
    Some(base)
}
