//! The JSON paths of printer columns: fields, indexes, wildcards and filters,
//! as in `.status.conditions[?(@.type=="Ready")].status`.

use std::cmp::Ordering;

use serde_json::Value;

pub(super) struct JsonPath(Vec<Step>);

enum Step {
    Field(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    Filter(Filter),
}

/// `@.path`, or `@.path <operator> literal`.
struct Filter {
    path: JsonPath,
    comparison: Option<(Operator, Value)>,
}

#[derive(Clone, Copy)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// `None` if the path is invalid or not supported.
    pub(super) fn parse(text: &str) -> Option<JsonPath> {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('$');
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(inside) => {
                    let end = closing(inside)?;
                    (bracket(inside[..end].trim())?, &inside[end + 1..])
                }
                None => field(rest.strip_prefix('.').unwrap_or(rest))?,
            };
            steps.extend(step);
            rest = after;
        }
        Some(JsonPath(steps))
    }

    pub(super) fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.select(value)).collect();
        }
        found
    }
}

/// The index of the bracket that closes the one just opened; quoted brackets do not count.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(i),
            (None, ']') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn field(text: &str) -> Option<(Option<Step>, &str)> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((i, c)) = letters.next() {
        match c {
            '\\' => name.push(letters.next()?.1),
            '.' | '[' => {
                end = i;
                break;
            }
            c => name.push(c),
        }
    }
    let step = match name.as_str() {
        // A lone dot is the object itself.
        "" => None,
        "*" => Some(Step::All),
        _ => Some(Step::Field(name)),
    };
    (step.is_some() || end == text.len()).then_some((step, &text[end..]))
}

fn bracket(text: &str) -> Option<Option<Step>> {
    if text == "*" {
        return Some(Some(Step::All));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return Some(Some(Step::Filter(Filter::parse(filter)?)));
    }
    if let Some(name) = unquoted(text) {
        return Some(Some(Step::Field(name)));
    }
    let bound = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    Some(Some(match text.split_once(':') {
        Some((from, to)) => Step::Slice(bound(from)?, bound(to)?),
        None => Step::Index(text.parse().ok()?),
    }))
}

fn unquoted(text: &str) -> Option<String> {
    ['\'', '"'].iter().find_map(|quote| Some(text.strip_prefix(*quote)?.strip_suffix(*quote)?.to_owned()))
}

impl Filter {
    fn parse(text: &str) -> Option<Filter> {
        const OPERATORS: [(&str, Operator); 6] = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let text = text.trim().strip_prefix('@')?;
        let split = OPERATORS
            .iter()
            .filter_map(|(sign, operator)| Some((text.find(sign)?, sign, operator)))
            // The leftmost operator; of `<=` and `<` at one place the longer.
            .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())));
        let Some((at, sign, operator)) = split else {
            return Some(Filter { path: JsonPath::parse(text)?, comparison: None });
        };
        let literal = text[at + sign.len()..].trim();
        let literal = match unquoted(literal) {
            Some(text) => Value::from(text),
            None => serde_json::from_str(literal).ok()?,
        };
        Some(Filter { path: JsonPath::parse(text[..at].trim())?, comparison: Some((*operator, literal)) })
    }

    fn matches(&self, value: &Value) -> bool {
        let found = self.path.find(value);
        match &self.comparison {
            None => !found.is_empty(),
            Some((operator, literal)) => found.first().is_some_and(|value| operator.compare(value, literal)),
        }
    }
}

impl Operator {
    fn compare(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Number(left), Value::Number(right)) => left.as_f64().partial_cmp(&right.as_f64()),
            _ => (left == right).then_some(Ordering::Equal),
        };
        match self {
            Operator::Equal => order == Some(Ordering::Equal),
            Operator::NotEqual => order != Some(Ordering::Equal),
            Operator::Less => order == Some(Ordering::Less),
            Operator::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Operator::Greater => order == Some(Ordering::Greater),
            Operator::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl Step {
    fn select<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let items = || value.as_array().map(Vec::as_slice).unwrap_or_default();
        // Negative indexes count from the end.
        let position = |at: i64| if at < 0 { at + items().len() as i64 } else { at };
        let position = |at: i64| usize::try_from(position(at)).unwrap_or_default();
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Index(at) if *at < 0 && position(*at) == 0 && items().len() as i64 + at != 0 => Vec::new(),
            Step::Index(at) => items().get(position(*at)).into_iter().collect(),
            Step::Slice(from, to) => {
                let from = from.map_or(0, position).min(items().len());
                let to = to.map_or(items().len(), position).clamp(from, items().len());
                items()[from..to].iter().collect()
            }
            Step::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(fields) => fields.values().collect(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
            },
            Step::Filter(filter) => items().iter().filter(|item| filter.matches(item)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::JsonPath;

    #[test]
    fn json_paths_select_as_kubectl_does() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}},
            "status": {
                "list": [1, 2, 3],
                "conditions": [
                    {"type": "Ready", "status": "True", "weight": 5},
                    {"type": "a]b", "status": "False"},
                ],
            },
        });
        for (path, found) in [
            (".status.list[0]", json!([1])),
            (".status.list[-1]", json!([3])),
            (".status.list[-9]", json!([])),
            (".status.list[1:]", json!([2, 3])),
            (".status.list[*]", json!([1, 2, 3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='a]b')].status", json!(["False"])),
            (".status.conditions[?(@.type != \"Ready\")].status", json!(["False"])),
            (".status.conditions[?(@.weight >= 5)].type", json!(["Ready"])),
            (".status.conditions[?(@.weight)].type", json!(["Ready"])),
            (".metadata.annotations.a\\.b/c", json!(["dotted"])),
            (".metadata.annotations['a.b/c']", json!(["dotted"])),
            (".missing.field", json!([])),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} is supported"));
            assert_eq!(Value::from_iter(parsed.find(&object).into_iter().cloned()), found, "{path}");
        }
    }

    #[test]
    fn invalid_json_paths_are_rejected() {
        for path in [".a[", ".a[?(b==1)]", ".a[x]"] {
            assert!(JsonPath::parse(path).is_none(), "{path}");
        }
    }
}
