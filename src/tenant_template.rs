//! Templates that tenants write: expressions between `{{` and `}}`, and no statements. Nothing
//! in them repeats, and time and memory are linear in their length, since they are rendered
//! on the thread of the run loop.

use minijinja::{AutoEscape, Environment, UndefinedBehavior};

/// In minijinja's instructions: a template of the longest query has fewer.
const FUEL: u64 = 50_000;

/// An unknown variable is an error.
pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment
}

/// Statements, comments, and the operator that repeats texts and lists, as minijinja
/// would find them: braces and stars within quotes are text.
pub fn unsupported_syntax(text: &str) -> Option<&'static str> {
    let mut rest = text;
    while let Some(at) = rest.find("{") {
        rest = &rest[at + 1..];
        match rest.chars().next() {
            Some('%') => return Some("a statement ({%)"),
            Some('#') => return Some("a comment ({#)"),
            Some('{') => {}
            _ => continue,
        }
        rest = &rest[1..];
        let (mut quote, mut escaped, mut end) = (None, false, rest.len());
        for (at, c) in rest.char_indices() {
            match quote {
                _ if escaped => escaped = false,
                Some(open) => {
                    escaped = c == '\\';
                    quote = quote.filter(|_| c != open);
                }
                None if c == '"' || c == '\'' => quote = Some(c),
                None if c == '*' => return Some("the operator *"),
                // Its }} would not end the expression.
                None if c == '{' => return Some("a map"),
                None if rest[at..].starts_with("}}") => {
                    end = at;
                    break;
                }
                None => {}
            }
        }
        rest = &rest[end..];
    }
    None
}
