//! `x-kubernetes-validations`: rules in CEL, compiled with the schema.
//!
//! The traversal follows the API server: `oldSelf` follows list items by their
//! map keys only, unchanged values stay valid, and only subtrees with rules are
//! visited.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::core::cel::KubeCelExt;
use kube::core::cel::cel::objects::{Key, Map, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Program, Value as Cel};
use serde_json::Value;

use super::cel_types::{self, ExpectedType};
use super::path::Path;
use super::validate::counterpart;
use super::{AdditionalProperties, FieldError, Reason, Schema, SchemaType};

pub(super) struct Rule {
    source: String,
    program: Program,
    message: Option<String>,
    message_program: Option<Program>,
    reason: Option<Reason>,
    /// Without its leading dot.
    field_path: Option<String>,
    uses_old_self: bool,
    old_self_is_optional: bool,
}

impl Rule {
    /// Compiles a rule of the node `schema` at `path`.
    pub(super) fn parse(
        json: &Value,
        schema: &Schema,
        is_resource: bool,
        path: &str,
    ) -> Result<Rule, Vec<FieldError>> {
        let text = |name: &str| {
            json.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty())
        };
        let at = |name: &str| format!("{path}.{name}");
        let Some(source) = text("rule") else {
            return Err(vec![FieldError::required(at("rule"), "rule is not specified")]);
        };
        let mut errors = Vec::new();
        match text("message") {
            Some(message) if message.contains('\n') => {
                let detail = "must not contain line breaks";
                errors.push(FieldError::invalid(at("message"), &message.into(), detail));
            }
            None if source.contains('\n') => {
                let detail = "message must be specified if rule contains line breaks";
                errors.push(FieldError::required(at("message"), detail));
            }
            _ => {}
        }
        let mut compile = |name: &str, source: &str, wanted: ExpectedType| {
            let failed = match wanted {
                ExpectedType::Condition => "compilation failed",
                ExpectedType::Message => "messageExpression compilation failed",
            };
            let program = Program::compile(source).map_err(|error| format!("{failed}: {error}"));
            let checked = program.and_then(|program| {
                cel_types::check(&program, source, schema, is_resource, wanted).map(|()| program)
            });
            checked
                .map_err(|detail| {
                    let shown = format!("Invalid value: {}", go_struct_text(json));
                    errors.push(FieldError::with_text(at(name), Reason::Invalid, &shown, &detail));
                })
                .ok()
        };
        let program = compile("rule", source, ExpectedType::Condition);
        let message_program = text("messageExpression")
            .and_then(|text| compile("messageExpression", text, ExpectedType::Message));
        let reason = match text("reason") {
            None | Some("FieldValueInvalid") => None,
            Some("FieldValueForbidden") => Some(Reason::Forbidden),
            Some("FieldValueRequired") => Some(Reason::Required),
            Some("FieldValueDuplicate") => Some(Reason::Duplicate),
            Some(other) => {
                let supported =
                    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
                errors.push(FieldError::not_supported(at("reason"), &other.into(), &supported));
                None
            }
        };
        let field_path = text("fieldPath");
        if let Some(wanted) = field_path
            && !field_path_exists(schema, wanted)
        {
            errors.push(FieldError::invalid(at("fieldPath"), &wanted.into(), "must be a valid path"));
        }
        let uses_old_self =
            program.as_ref().is_some_and(|program| program.references().has_variable("oldSelf"));
        let old_self_is_optional = json.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default();
        if old_self_is_optional && !uses_old_self && program.is_some() {
            let detail = "may not be set if oldSelf is not used in rule";
            errors.push(FieldError::invalid(at("optionalOldSelf"), &true.into(), detail));
        }
        let Some(program) = program.filter(|_| errors.is_empty()) else { return Err(errors) };
        Ok(Rule {
            source: source.to_owned(),
            uses_old_self,
            old_self_is_optional,
            program,
            message: text("message").map(str::to_owned),
            message_program,
            reason,
            field_path: field_path.map(|path| path.trim_start_matches('.').to_owned()),
        })
    }

    /// Whether the rule compares with the old value.
    pub(super) fn is_transition(&self) -> bool {
        self.uses_old_self
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    fn check(&self, node: &Node<'_>, context: &Context<'_>) -> Option<FieldError> {
        let result = if self.old_self_is_optional {
            let mut context = context.new_inner_scope();
            context.add_variable_from_value("oldSelf", optional(node.old_self()));
            self.program.execute(&context)
        } else if self.uses_old_self && node.old.is_none() {
            return None;
        } else {
            self.program.execute(context)
        };
        let path = node.path.bracketed();
        let detail = match result {
            Ok(Cel::Bool(true)) => return None,
            Ok(_) => self.explain(context),
            Err(error) => {
                let detail = self.evaluation_error(&error);
                let kind = node.schema.kind.filter(|kind| *kind != SchemaType::IntOrString);
                let kind = kind.map(SchemaType::name).unwrap_or_default();
                return Some(FieldError::invalid(or_nil(path), &kind.into(), &detail));
            }
        };
        let path = match (&self.field_path, path.is_empty()) {
            (None, _) => path,
            (Some(below), true) => below.clone(),
            (Some(below), false) => format!("{path}.{below}"),
        };
        let path = or_nil(path);
        let whole = matches!(node.schema.kind, Some(SchemaType::Object | SchemaType::Array));
        Some(match self.reason {
            Some(Reason::Forbidden) => FieldError::forbidden(path, &detail),
            Some(Reason::Required) => FieldError::required(path, &detail),
            Some(Reason::Duplicate) if whole => {
                FieldError { field: path, reason: Reason::Duplicate, message: "Duplicate value".to_owned() }
            }
            Some(Reason::Duplicate) => FieldError::duplicate(path, node.value),
            _ if whole => FieldError::invalid_without_value(path, &detail),
            _ => FieldError::invalid(path, node.value, &detail),
        })
    }

    fn explain(&self, context: &Context<'_>) -> String {
        let computed = self.message_program.as_ref().and_then(|program| match program.execute(context) {
            Ok(Cel::String(text)) => Some(text.trim().to_owned()),
            _ => None,
        });
        let usable = |text: &String| !text.is_empty() && !text.contains('\n') && text.len() <= 5 * 1024;
        computed.filter(usable).unwrap_or_else(|| match &self.message {
            Some(message) => message.clone(),
            None => format!("failed rule: {}", self.source),
        })
    }

    fn evaluation_error(&self, error: &ExecutionError) -> String {
        let rule = self.message.as_ref().unwrap_or(&self.source);
        match error {
            ExecutionError::NoSuchOverload
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedBinaryOperator(..)
            | ExecutionError::UnsupportedUnaryOperator(..) => format!(
                "'no such overload': call arguments did not match a supported operator, \
                 function or macro signature for rule: {rule}"
            ),
            ExecutionError::NoSuchKey(key) => format!("no such key: {key} evaluating rule: {rule}"),
            ExecutionError::IndexOutOfBounds(Cel::Int(index)) => {
                format!("index out of bounds: {index} evaluating rule: {rule}")
            }
            ExecutionError::DivisionByZero(_) => format!("division by zero evaluating rule: {rule}"),
            other => format!("{other} evaluating rule: {rule}"),
        }
    }
}

pub(super) fn check(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    thread_local! {
        /// Shared: registering all functions costs more than most rules.
        static FUNCTIONS: Context<'static> = Context::default().with_all();
    }
    let mut errors = Vec::new();
    let root = Node { schema, value: object, old, path: &Path::ROOT, unchanged: false };
    FUNCTIONS.with(|functions| walk(&root, functions, &mut errors));
    errors
}

struct Node<'a> {
    schema: &'a Schema,
    value: &'a Value,
    old: Option<&'a Value>,
    path: &'a Path<'a>,
    /// This node or an ancestor equals its accepted old value: only transition rules are evaluated.
    unchanged: bool,
}

impl Node<'_> {
    fn old_self(&self) -> Option<Cel> {
        self.old.map(|old| to_cel(Some(self.schema), old))
    }
}

fn walk(node: &Node<'_>, functions: &Context<'_>, errors: &mut Vec<FieldError>) {
    let Node { schema, value, old, path, unchanged } = *node;
    if !schema.has_rules || value.is_null() {
        return;
    }
    let unchanged = unchanged || old == Some(value);
    let mut rules = schema.rules.iter().filter(|rule| rule.uses_old_self || !unchanged).peekable();
    if rules.peek().is_some() {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("self", to_cel(Some(schema), value));
        if schema.rules.iter().any(|rule| rule.uses_old_self && !rule.old_self_is_optional)
            && let Some(old) = node.old_self()
        {
            context.add_variable_from_value("oldSelf", old);
        }
        errors.extend(rules.filter_map(|rule| rule.check(node, &context)));
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let Some(below) = schema.field(name) else { continue };
                let path =
                    &if schema.properties.contains_key(name) { path.field(name) } else { path.key(name) };
                let old = old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                walk(&Node { schema: below, value, old, path, unchanged }, functions, errors);
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items() else { return };
            for (i, value) in items.iter().enumerate() {
                let old = old.and_then(|old| counterpart(&schema.list, value, old));
                walk(&Node { schema: below, value, old, path: &path.index(i), unchanged }, functions, errors);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn or_nil(path: String) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path }
}

fn optional(value: Option<Cel>) -> Cel {
    Cel::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// A JSON value as CEL sees it: typed by its schema, null fields absent,
/// field names escaped so that they are identifiers.
fn to_cel(schema: Option<&Schema>, value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (schema.and_then(|schema| schema.kind), number.as_i64()) {
            (Some(SchemaType::Number), _) | (_, None) => Cel::Float(number.as_f64().unwrap_or_default()),
            (_, Some(integer)) => Cel::Int(integer),
        },
        Value::String(text) => text_to_cel(schema, text),
        Value::Array(items) => {
            let schema = schema.and_then(Schema::items);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(schema, item)).collect()))
        }
        Value::Object(fields) => {
            let is_map = schema.is_some_and(|schema| {
                !matches!(
                    schema.additional_properties,
                    AdditionalProperties::Unspecified | AdditionalProperties::Forbidden
                )
            });
            let mut map = HashMap::with_capacity(fields.len());
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let key = if is_map { name.clone() } else { escaped(name) };
                let value = to_cel(schema.and_then(|schema| schema.field(name)), value);
                map.insert(Key::String(Arc::new(key)), value);
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

fn text_to_cel(schema: Option<&Schema>, text: &str) -> Cel {
    let format = schema.and_then(|schema| schema.format.as_ref()).map(|format| format.name.as_str());
    let typed = match format {
        Some("date-time" | "datetime") => chrono::DateTime::parse_from_rfc3339(text).ok().map(Cel::Timestamp),
        Some("date") => format!("{text}T00:00:00Z").parse().ok().map(Cel::Timestamp),
        Some("duration") => go_duration(text).map(Cel::Duration),
        Some("byte") => STANDARD.decode(text).ok().map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    typed.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

fn go_duration(text: &str) -> Option<chrono::Duration> {
    let (text, sign) = text.strip_prefix('-').map_or((text, 1.0), |text| (text, -1.0));
    let mut rest = text.trim_start_matches('+');
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit_length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_length);
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "" if number == "0" => 0.0,
            _ => return None,
        };
        nanoseconds += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    Some(chrono::Duration::nanoseconds((nanoseconds * sign) as i64))
}

pub(super) fn escaped(name: &str) -> String {
    const RESERVED: [&str; 18] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
    ];
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// Whether a rule's `fieldPath` names a declared field below the node.
fn field_path_exists(schema: &Schema, path: &str) -> bool {
    let Some(rest) = path.strip_prefix(['.', '[']) else { return false };
    let mut names = rest.split(['.', '[']).map(|name| name.trim_end_matches(']').trim_matches('\''));
    names.try_fold(schema, |schema, name| schema.field(name)).is_some()
}

/// A rule as the API server prints its Go struct.
fn go_struct_text(rule: &Value) -> String {
    let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
    let quoted = |name: &str| {
        let json = Value::from(text(name)).to_string();
        json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    };
    let or_null = |name: &str| rule.get(name).cloned().unwrap_or_default();
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        quoted("rule"),
        quoted("message"),
        quoted("messageExpression"),
        or_null("reason"),
        quoted("fieldPath"),
        or_null("optionalOldSelf")
    )
}
