//! Validation of values against their schema, except for CEL rules.
//!
//! Follows the API server's validator, including which of several failed
//! alternatives it reports: the one that got furthest.

use serde_json::{Map, Number, Value};

use super::error::{go_float, go_quote};
use super::format::FormatKind;
use super::path::Path;
use super::{AdditionalProperties, Bound, FieldError, Limits, ListType, Schema, SchemaType};

pub(super) fn against(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    check(schema, object, old, &Path::ROOT).errors
}

#[derive(Default)]
struct ValidationResult {
    errors: Vec<FieldError>,
    /// The number of checks that passed or were at least reached.
    score: u32,
}

impl ValidationResult {
    fn add(&mut self, error: FieldError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn merge(&mut self, other: ValidationResult) {
        self.score += other.score;
        for error in other.errors {
            self.add(error);
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

fn check(schema: &Schema, value: &Value, old: Option<&Value>, path: &Path<'_>) -> ValidationResult {
    let mut outcome = ValidationResult::default();
    // An unchanged invalid value is accepted.
    if old == Some(value) {
        return outcome;
    }
    let limits = schema.limits.as_deref();
    if schema.kind.is_some() || schema.format.is_some() {
        match check_type(schema, value, path) {
            Some(error) => outcome.add(error),
            None => outcome.score += 1,
        }
        outcome.score += u32::from(!value.is_null());
    }
    if value.is_null() {
        if let Some(limits) = limits {
            check_enum(limits, value, path, &mut outcome);
        }
        return outcome;
    }
    if let Some(limits) = limits {
        check_alternatives(limits, value, path, &mut outcome);
    }
    outcome.score += 2;
    match value {
        Value::String(text) => check_string(schema, limits, text, path, &mut outcome),
        Value::Number(number) => check_number(schema, limits, number, path, &mut outcome),
        Value::Array(items) => check_items(schema, limits, items, old, path, &mut outcome),
        Value::Object(fields) => check_fields(schema, limits, fields, old, path, &mut outcome),
        Value::Null | Value::Bool(_) => {}
    }
    if let Some(limits) = limits {
        check_enum(limits, value, path, &mut outcome);
    }
    outcome.score += 2;
    outcome
}

fn check_type(schema: &Schema, value: &Value, path: &Path<'_>) -> Option<FieldError> {
    let (found, found_format) = match value {
        Value::Null => match schema.kind {
            Some(kind) if !schema.nullable => return Some(type_error(path, kind.name(), "null")),
            _ => return None,
        },
        Value::Bool(_) => (SchemaType::Boolean, ""),
        Value::String(_) => (SchemaType::String, ""),
        Value::Number(number) if number.is_f64() => (SchemaType::Number, "float64"),
        Value::Number(_) => (SchemaType::Integer, "int64"),
        Value::Array(_) => (SchemaType::Array, ""),
        Value::Object(_) => (SchemaType::Object, ""),
    };
    let textual = matches!(found, SchemaType::String | SchemaType::Array);
    let fits = |kind: SchemaType| {
        kind.includes(found)
            || (value.as_f64().is_some_and(is_integral) && kind.includes(SchemaType::Integer))
            || (found == SchemaType::Integer && kind.includes(SchemaType::Number))
    };
    if let Some(format) = &schema.format {
        if !textual && !schema.kind.is_some_and(fits) && format.name != found_format {
            return Some(type_error(path, &format.name, found_format));
        }
        // The API server, too, accepts a list for a formatted string.
        if textual && !matches!(schema.kind, Some(SchemaType::Integer | SchemaType::Number)) {
            return None;
        }
    }
    match schema.kind {
        Some(kind) if !fits(kind) => Some(type_error(path, kind.name(), found.name())),
        _ => None,
    }
}

/// Whether a float is an integer that floats represent exactly.
fn is_integral(float: f64) -> bool {
    float.fract() == 0.0 && float.abs() < 2_f64.powi(53)
}

fn type_error(path: &Path<'_>, wanted: &str, found: &str) -> FieldError {
    let path = path.dotted();
    let detail = format!("{path} in body must be of type {wanted}: {}", go_quote(found));
    FieldError::invalid_type(path_or_nil(path), found, &detail)
}

/// The API server reports the root object as `<nil>`.
fn path_or_nil(path: String) -> String {
    if path.is_empty() { "<nil>".to_owned() } else { path }
}

fn invalid(path: &Path<'_>, value: &Value, complaint: &str) -> FieldError {
    let path = path.dotted();
    let detail = format!("{path} in body {complaint}");
    FieldError::invalid(path_or_nil(path), value, &detail)
}

fn check_enum(limits: &Limits, value: &Value, path: &Path<'_>, outcome: &mut ValidationResult) {
    let same = |allowed: &Value| match (allowed, value) {
        (Value::Number(_), Value::Number(_)) => allowed.as_f64() == value.as_f64(),
        _ => !value.is_null() && allowed == value,
    };
    if limits.one_of_values.is_empty() || limits.one_of_values.iter().any(same) {
        return;
    }
    let supported: Vec<String> = limits
        .one_of_values
        .iter()
        .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
        .collect();
    outcome.add(FieldError::not_supported(path_or_nil(path.dotted()), value, &supported));
}

fn check_string(
    schema: &Schema,
    limits: Option<&Limits>,
    text: &str,
    path: &Path<'_>,
    outcome: &mut ValidationResult,
) {
    let value = || Value::from(text);
    if let Some(limits) = limits {
        let length = text.chars().count() as i64;
        if let Some(max) = limits.max_length.filter(|max| length > *max) {
            outcome.add(FieldError::too_long(path_or_nil(path.dotted()), max));
        } else if let Some(min) = limits.min_length.filter(|min| length < *min) {
            outcome.add(invalid(path, &value(), &format!("should be at least {min} chars long")));
        } else if let Some(pattern) = limits.pattern.as_ref().filter(|pattern| !pattern.regex.is_match(text))
        {
            outcome.add(invalid(path, &value(), &format!("should match '{}'", pattern.source)));
        }
    }
    outcome.score += 1;
    if let Some(format) = &schema.format
        && let FormatKind::Text(is_valid) = format.kind
    {
        if !is_valid(text) {
            outcome.add(type_error(path, &format.name, text));
        }
        outcome.score += 1;
    }
}

fn check_number(
    schema: &Schema,
    limits: Option<&Limits>,
    number: &Number,
    path: &Path<'_>,
    outcome: &mut ValidationResult,
) {
    outcome.score += 2;
    check_range(schema, number, path, outcome);
    let Some(limits) = limits else { return };
    let float = number.as_f64().unwrap_or_default();
    let value = || Value::Number(number.clone());
    let integer = number.as_i64();
    // Integers are compared with the integer part of a limit.
    let shown = |limit: f64| if integer.is_some() { (limit as i64).to_string() } else { go_float(limit) };
    if let Some(factor) = limits.multiple_of {
        let whole = factor as i64;
        let fits = match integer {
            Some(_) if whole <= 0 => {
                let at = path.dotted();
                let detail = format!("factor MultipleOf declared for {at} must be positive: {whole}");
                outcome.add(FieldError::invalid(path_or_nil(at), &whole.into(), &detail));
                true
            }
            Some(integer) => integer % whole == 0,
            None if factor < 1.0 => is_integral(1.0 / factor * float),
            None => is_integral(float / factor),
        };
        if !fits {
            outcome.add(invalid(path, &value(), &format!("should be a multiple of {}", shown(factor))));
        }
    }
    let mut bounded = |bound: &Option<Bound>, words: &str, side: f64| {
        let Some(Bound { value: bound, exclusive }) = bound else { return };
        let bound = if integer.is_some() { bound.trunc() } else { *bound };
        let beyond = (float - bound) * side;
        if beyond < 0.0 || (*exclusive && beyond == 0.0) {
            let or_equal = if *exclusive { "" } else { " or equal to" };
            outcome.add(invalid(
                path,
                &value(),
                &format!("should be {words} than{or_equal} {}", shown(bound)),
            ));
        }
    };
    bounded(&limits.minimum, "greater", 1.0);
    bounded(&limits.maximum, "less", -1.0);
}

fn check_range(schema: &Schema, number: &Number, path: &Path<'_>, outcome: &mut ValidationResult) {
    let format = schema.format.as_ref();
    let float = number.as_f64().unwrap_or_default();
    let whole = number.as_i64().or_else(|| is_integral(float).then_some(float as i64));
    let in_range = match (schema.kind, format.map(|format| &format.kind)) {
        (Some(SchemaType::Integer), Some(FormatKind::Int32)) => {
            whole.is_some_and(|integer| i32::try_from(integer).is_ok())
        }
        (Some(SchemaType::Integer), _) => whole.is_some(),
        (Some(SchemaType::Number), Some(FormatKind::Float)) => float.abs() <= f64::from(f32::MAX),
        _ => true,
    };
    if !in_range {
        let kind = schema.kind.map(SchemaType::name).unwrap_or_default();
        let of =
            format.map_or("(default format)".to_owned(), |format| format!("with format {}", format.name));
        let detail = format!("Checked value must be of type {kind} {of} in {}", path.dotted());
        outcome.add(FieldError::invalid_without_path("\"\"", &detail));
    }
}

fn check_items(
    schema: &Schema,
    limits: Option<&Limits>,
    items: &[Value],
    old: Option<&Value>,
    path: &Path<'_>,
    outcome: &mut ValidationResult,
) {
    if let Some(item_schema) = schema.items() {
        for (i, item) in items.iter().enumerate() {
            let old = old.and_then(|old| counterpart(&schema.list, item, old));
            outcome.merge(check(item_schema, item, old, &path.index(i)));
        }
    }
    if let Some(limits) = limits {
        let count = items.len() as i64;
        if let Some(min) = limits.min_items.filter(|min| count < *min) {
            outcome.add(invalid(path, &count.into(), &format!("should have at least {min} items")));
        }
        if let Some(max) = limits.max_items.filter(|max| count > *max) {
            outcome.add(FieldError::too_many(path_or_nil(path.dotted()), items.len(), max));
        }
    }
    outcome.score += 2;
}

/// The corresponding item of the old list; `None` if the list type does not define one.
pub(super) fn counterpart<'v>(list: &ListType, item: &Value, old: &'v Value) -> Option<&'v Value> {
    let ListType::Map(keys) = list else { return None };
    old.as_array()?.iter().find(|old| keys.iter().all(|key| old.get(key) == item.get(key)))
}

fn check_fields(
    schema: &Schema,
    limits: Option<&Limits>,
    fields: &Map<String, Value>,
    old: Option<&Value>,
    path: &Path<'_>,
    outcome: &mut ValidationResult,
) {
    let count = fields.len() as i64;
    if let Some(limits) = limits {
        if let Some(min) = limits.min_properties.filter(|min| count < *min) {
            outcome.add(invalid(path, &count.into(), &format!("should have at least {min} properties")));
        }
        if let Some(max) = limits.max_properties.filter(|max| count > *max) {
            outcome.add(FieldError::too_many(path_or_nil(path.dotted()), fields.len(), max));
        }
    }
    let old_field = |name: &str| old.and_then(|old| old.get(name));
    for (name, value) in fields {
        if let Some(property) = schema.properties.get(name) {
            outcome.merge(check(property, value, old_field(name), &path.field(name)));
            continue;
        }
        match &schema.additional_properties {
            AdditionalProperties::Of(entry) => {
                outcome.merge(check(entry, value, old_field(name), &path.key(name)))
            }
            AdditionalProperties::Forbidden => {
                let at = path.dotted();
                let detail = format!("{at}.{name} in body is a forbidden property");
                outcome.add(FieldError::invalid(path_or_nil(at), &name.as_str().into(), &detail));
            }
            AdditionalProperties::Unspecified | AdditionalProperties::Any => {}
        }
    }
    for name in limits.iter().flat_map(|limits| &limits.required) {
        if !fields.contains_key(name) {
            outcome.add(FieldError::required(path.field(name).dotted(), ""));
        }
    }
    outcome.score += 1;
}

fn check_alternatives(limits: &Limits, value: &Value, path: &Path<'_>, outcome: &mut ValidationResult) {
    let at = || go_quote(&path.dotted());
    let attempt = |schema: &Schema| check(schema, value, None, path);
    if !limits.any_of.is_empty() {
        let mut best: Option<ValidationResult> = None;
        for schema in &limits.any_of {
            let tried = attempt(schema);
            let (valid, better) =
                (tried.is_valid(), best.as_ref().is_none_or(|best| tried.score > best.score));
            if valid || better {
                best = Some(tried);
            }
            if valid {
                break;
            }
        }
        if best.as_ref().is_none_or(|best| !best.is_valid()) {
            outcome.add(FieldError::invalid_without_path(
                "\"\"",
                &format!("{} must validate at least one schema (anyOf)", at()),
            ));
        }
        best.into_iter().for_each(|best| outcome.merge(best));
    }
    if !limits.one_of.is_empty() {
        let (valid, failed): (Vec<_>, Vec<_>) =
            limits.one_of.iter().map(attempt).partition(ValidationResult::is_valid);
        if valid.len() != 1 {
            let found = match valid.len() {
                0 => "Found none valid".to_owned(),
                several => format!("Found {several} valid alternatives"),
            };
            outcome.add(FieldError::invalid_without_path(
                "\"\"",
                &format!("{} must validate one and only one schema (oneOf). {found}", at()),
            ));
        }
        // Of equal scores the first is reported.
        let furthest = failed.into_iter().rev().max_by_key(|failure| failure.score);
        match (valid.into_iter().next(), furthest) {
            (Some(first), _) => outcome.merge(first),
            (None, Some(furthest)) => outcome.merge(furthest),
            (None, None) => {}
        }
    }
    if !limits.all_of.is_empty() {
        let tried: Vec<_> = limits.all_of.iter().map(attempt).collect();
        let valid = tried.iter().filter(|tried| tried.is_valid()).count();
        let all = tried.len();
        tried.into_iter().for_each(|tried| outcome.merge(tried));
        if valid != all {
            let none = if valid == 0 { ". None validated" } else { "" };
            outcome.add(FieldError::invalid_without_path(
                "\"\"",
                &format!("{} must validate all the schemas (allOf){none}", at()),
            ));
        }
    }
    if limits.not.as_ref().is_some_and(|not| attempt(not).is_valid()) {
        outcome.add(FieldError::invalid_without_path(
            "\"\"",
            &format!("{} must not validate the schema (not)", at()),
        ));
    }
    outcome.score += 1;
}
