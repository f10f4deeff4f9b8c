//! Query templates.
//!
//! Between `{{` and `}}`: Flagger's variables (`name`, `namespace`, `target`,
//! `service`, `ingress`, `route`, `interval`, `variables.NAME`) with Flagger's
//! meaning, and `arm`: `canary` or `primary`. In a query about the primary,
//! `target` is the primary's workload, so that one template serves both arms.
//! Go's calls `{{ printf "%s-x" target }}` and `{{ index variables "NAME" }}` are
//! supported too. An unknown variable is an error, never an empty string.
//!
//! Templates are written by tenants and rendered on the thread of the run loop:
//! they have no statements, nothing in them repeats, and time and memory are
//! linear in their length.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::value::{Object, Rest};
use minijinja::{Error, ErrorKind, Value};
use parking_lot::Mutex;

use crate::{
    analysis::measurement::Arms,
    api::{
        Canary, Duration,
        canary::{Metric, TargetKind},
    },
    tenant_template,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    Canary,
    Primary,
}

impl Arm {
    pub const fn both() -> Arms<Arm> {
        Arms { canary: Arm::Canary, primary: Arm::Primary }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Canary => "canary",
            Self::Primary => "primary",
        }
    }
}

/// Values of the template variables.
#[derive(Clone, Debug)]
pub struct TemplateVars {
    pub name: String,
    pub namespace: String,
    pub target: String,
    pub kind: TargetKind,
    /// Of the arms, if the target is an EndpointGroup and they are known.
    pub versions: Option<Arms<String>>,
    pub service: String,
    pub ingress: String,
    pub route: String,
    pub interval: String,
    pub variables: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("{template}: {field} uses {word}, which nothing sets; {instead}")]
    Unknown { template: String, field: &'static str, word: String, instead: String },
    #[error("{template}: {field} cannot be parsed: {why}")]
    Unreadable { template: String, field: &'static str, why: String },
    #[error(
        "{template}: {field} contains {what}; between {{{{ and }}}} only variables, printf and index are supported"
    )]
    Statement { template: String, field: &'static str, what: &'static str },
    #[error("{template}: variables.{name} is longer than {MAX_VARIABLE} bytes; shorten it")]
    LongVariable { template: String, name: String },
    #[error(
        "{template}: {field} is longer than {} KiB once its variables are filled in; shorten it",
        MAX_RENDERED >> 10
    )]
    LongResult { template: String, field: &'static str },
}

/// Of the value of one variable, in bytes.
const MAX_VARIABLE: usize = 1024;

/// Of a rendered query, in bytes.
const MAX_RENDERED: usize = 64 << 10;

const VARIABLE_NAMES: &str =
    "name, namespace, target, service, ingress, route, interval, arm and variables.NAME";

/// Of metrics without an interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

impl TemplateVars {
    /// The metric's variables override those of its template.
    pub fn of(canary: &Canary, metric: &Metric, variables: &BTreeMap<String, String>) -> Self {
        let spec = &canary.spec;
        let target = spec.target_ref.name.clone();
        let or_target = |name: Option<&String>| name.cloned().unwrap_or_else(|| target.clone());
        let mut variables = variables.clone();
        variables.extend(metric.template_variables.clone());
        Self {
            name: canary.metadata.name.clone().unwrap_or_default(),
            namespace: canary.metadata.namespace.clone().unwrap_or_default(),
            kind: spec.target_ref.kind,
            versions: None,
            service: or_target(spec.service.as_ref().and_then(|service| service.name.as_ref())),
            ingress: or_target(spec.ingress_ref.as_ref().map(|ingress| &ingress.name)),
            route: or_target(spec.route_ref.as_ref().map(|route| &route.name)),
            interval: whole_milliseconds(metric.interval.unwrap_or(DEFAULT_INTERVAL)),
            target,
            variables,
        }
    }

    /// The workload of an arm.
    pub fn workload(&self, arm: Arm) -> String {
        match arm {
            Arm::Canary => self.target.clone(),
            Arm::Primary => format!("{}-primary", self.target),
        }
    }

    pub fn render(
        &self,
        template: &str,
        field: &'static str,
        text: &str,
        arm: Arm,
    ) -> Result<String, TemplateError> {
        let name = || template.to_owned();
        let text = from_go(text);
        if let Some(what) = tenant_template::unsupported_syntax(&text) {
            return Err(TemplateError::Statement { template: name(), field, what });
        }
        if let Some((long, _)) = self.variables.iter().find(|(_, value)| value.len() > MAX_VARIABLE) {
            return Err(TemplateError::LongVariable { template: name(), name: long.clone() });
        }
        let missing = Arc::new(Mutex::new(None));
        let scope = self.scope(arm, &missing);
        let mut environment = tenant_template::environment();
        environment.add_function("printf", printf);
        let rendered = environment.render_named_str("query", &text, Value::from_object(scope));
        match rendered {
            Ok(query) if query.len() > MAX_RENDERED => {
                Err(TemplateError::LongResult { template: name(), field })
            }
            Ok(query) => Ok(query),
            Err(error) => {
                let template = name();
                let unknown = missing.lock().take().filter(|_| error.kind() == ErrorKind::UndefinedError);
                Err(match unknown {
                    Some(word) => TemplateError::Unknown { template, field, instead: instead(&word), word },
                    None => TemplateError::Unreadable { template, field, why: error.to_string() },
                })
            }
        }
    }

    fn scope(&self, arm: Arm, missing: &Arc<Mutex<Option<String>>>) -> VariableScope {
        let variables =
            self.variables.iter().map(|(name, value)| (name.clone(), Value::from(value))).collect();
        let variables = VariableScope { prefix: "variables.", vars: variables, missing: missing.clone() };
        let vars = [
            ("name", Value::from(&self.name)),
            ("namespace", Value::from(&self.namespace)),
            ("target", Value::from(self.workload(arm))),
            ("service", Value::from(&self.service)),
            ("ingress", Value::from(&self.ingress)),
            ("route", Value::from(&self.route)),
            ("interval", Value::from(&self.interval)),
            ("arm", Value::from(arm.name())),
            ("variables", Value::from_object(variables)),
        ];
        let vars = vars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        VariableScope { prefix: "", vars, missing: missing.clone() }
    }
}

fn instead(word: &str) -> String {
    match word.strip_prefix("variables.") {
        Some(name) => format!("add {name} to templateVariables of the metric"),
        None => format!("known are {VARIABLE_NAMES}"),
    }
}

/// The finest unit of query languages.
fn whole_milliseconds(interval: Duration) -> String {
    let milliseconds = u64::try_from(interval.get().as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(milliseconds.max(1)).to_string()
}

/// Records the name of a missing variable for the error message.
#[derive(Debug)]
struct VariableScope {
    prefix: &'static str,
    vars: BTreeMap<String, Value>,
    missing: Arc<Mutex<Option<String>>>,
}

impl Object for VariableScope {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        let value = self.vars.get(key).cloned();
        if value.is_none() && key != "printf" {
            *self.missing.lock() = Some(format!("{}{key}", self.prefix));
        }
        value
    }
}

/// The verbs of Go's `printf` that queries use.
fn printf(format: &str, values: Rest<Value>) -> Result<String, Error> {
    let bad = |why| Error::new(ErrorKind::InvalidOperation, format!("printf {format:?} {why}"));
    let mut text = String::new();
    let mut values = values.iter();
    let mut parts = format.split('%');
    text.push_str(parts.next().unwrap_or_default());
    while let Some(part) = parts.next() {
        if part.is_empty() {
            text.push('%');
            text.push_str(parts.next().unwrap_or_default());
            continue;
        }
        let rest =
            part.strip_prefix(['s', 'v', 'd']).ok_or_else(|| bad("has a verb other than %s, %v and %d"))?;
        match values.next() {
            Some(value) if value.is_undefined() => return Err(ErrorKind::UndefinedError.into()),
            Some(value) => text.push_str(&value.to_string()),
            None => return Err(bad("has fewer values than verbs")),
        }
        text.push_str(rest);
    }
    if values.next().is_some() { Err(bad("has more values than verbs")) } else { Ok(text) }
}

/// Adds the parentheses that Go's function calls lack; changes nothing else.
fn from_go(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((inside, after)) = after.split_once("}}") else { break };
        out.push_str(before);
        let trimmed = inside.trim_matches('-').trim();
        let (open, close) = (inside.starts_with('-'), inside.ends_with('-'));
        let call = match trimmed.split_once(char::is_whitespace) {
            Some(("printf", values)) => Some(format!("printf({})", arguments(values).join(", "))),
            Some(("index", values)) => arguments(values)
                .split_first()
                .map(|(map, keys)| keys.iter().fold(map.clone(), |map, key| format!("{map}[{key}]"))),
            _ => None,
        };
        match call {
            Some(call) => {
                let dash = |trims: bool| if trims { "-" } else { "" };
                out.push_str(&format!("{{{{{} {call} {}}}}}", dash(open), dash(close)));
            }
            None => out.push_str(&format!("{{{{{inside}}}}}")),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Splits at whitespace outside of quotes.
fn arguments(text: &str) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut open: Option<char> = None;
    let mut starts_argument = true;
    let mut escaped = false;
    for c in text.chars() {
        if open.is_none() && c.is_whitespace() {
            starts_argument = true;
            continue;
        }
        if std::mem::take(&mut starts_argument) {
            arguments.push(String::new());
        }
        match open {
            None if c == '"' || c == '`' => open = Some(c),
            Some(quote) if c == quote && !escaped => open = None,
            _ => {}
        }
        escaped = open == Some('"') && c == '\\' && !escaped;
        if let Some(last) = arguments.last_mut() {
            last.push(if c == '`' { '"' } else { c });
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars() -> TemplateVars {
        TemplateVars {
            name: "shop".into(),
            namespace: "prod".into(),
            target: "web".into(),
            kind: TargetKind::Deployment,
            versions: None,
            service: "web-svc".into(),
            ingress: "web-ing".into(),
            route: "web-route".into(),
            interval: "1m".into(),
            variables: [("path".to_owned(), "/a{1,2}".to_owned())].into(),
        }
    }

    #[track_caller]
    fn check(text: &str, canary: &str) {
        assert_eq!(vars().render("template t", "query", text, Arm::Canary).unwrap(), canary);
    }

    #[track_caller]
    fn refused(text: &str) -> String {
        vars().render("template errors", "query", text, Arm::Canary).unwrap_err().to_string()
    }

    #[test]
    fn flaggers_variables_are_supported() {
        check("{{name}}/{{ namespace }}/{{ target }}/{{ service }}", "shop/prod/web/web-svc");
        check("{{ ingress }} {{ route }} [{{ interval }}] {{ arm }}", "web-ing web-route [1m] canary");
        check(
            r#"x{path="{{ variables.path }}",a=~"{{ target }}-[0-9]+(-[0-9]+)"}"#,
            r#"x{path="/a{1,2}",a=~"web-[0-9]+(-[0-9]+)"}"#,
        );
    }

    #[test]
    fn go_template_calls_are_supported() {
        check(
            r#"r=~"{{ printf "kube(ew)?_%s__%s_canary__.*__%s_canary(_[0-9]+)?" namespace ingress service }}","#,
            r#"r=~"kube(ew)?_prod__web-ing_canary__.*__web-svc_canary(_[0-9]+)?","#,
        );
        check(r#"{{ index variables "path" }}"#, "/a{1,2}");
        check("a  {{- printf \"%s%%\" target -}}  b", "aweb%b");
    }

    #[test]
    fn one_template_serves_both_arms() {
        let text = "{{ target }} {{ service }}-{{ arm }}";
        assert_eq!(vars().render("t", "query", text, Arm::Primary).unwrap(), "web-primary web-svc-primary");
    }

    #[test]
    fn an_unset_variable_is_named_with_its_template() {
        let error = refused("sum({{ variables.direction }})");
        assert_eq!(
            error,
            "template errors: query uses variables.direction, which nothing sets; add direction to templateVariables of the metric"
        );
        let error = refused("sum({{ deployment }})");
        assert!(
            error.starts_with("template errors: query uses deployment, which nothing sets; known are name,"),
            "{error}"
        );
        let error = refused(r#"{{ printf "%s" tarjet }}"#);
        assert!(error.contains("uses tarjet"), "{error}");
        assert!(refused("{{ index variables \"other\" }}").contains("variables.other"));
    }

    #[test]
    fn an_unparsable_template_is_refused() {
        for text in ["{{ target", "{{ $x := target }}", r#"{{ printf "%q" target }}"#, r#"{{ printf "%s" }}"#]
        {
            assert!(refused(text).starts_with("template errors: query cannot be parsed: "), "{text}");
        }
    }

    #[test]
    fn values_are_not_escaped() {
        let mut vars = vars();
        vars.variables.insert("html".into(), "<\"&>".into());
        assert_eq!(vars.render("x.html", "query", "{{ variables.html }}", Arm::Canary).unwrap(), "<\"&>");
    }

    #[test]
    fn intervals_are_whole_milliseconds() {
        assert_eq!(whole_milliseconds("1.5h".parse().unwrap()), "1h30m");
        assert_eq!(whole_milliseconds("1s500us".parse().unwrap()), "1s");
    }
}
