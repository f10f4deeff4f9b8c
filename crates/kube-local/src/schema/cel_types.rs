//! Type check of a CEL rule against its schema, before there is any object:
//! undeclared fields, unknown names, operands of the wrong type, rules that are
//! not boolean.
//!
//! Unknown types are accepted; evaluation decides.

use kube::core::cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SelectExpr, operators,
};
use kube::core::cel::cel::{IdedExpr, Program};

use super::{AdditionalProperties, Schema, SchemaType};

#[derive(Clone, PartialEq)]
pub(super) enum Type<'a> {
    Unknown,
    Scalar(&'static str),
    List(Box<Type<'a>>),
    Map(Box<Type<'a>>),
    Object(Node<'a>),
    Metadata,
}

/// A schema node, compared by address.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    schema: &'a Schema,
    is_resource: bool,
}

impl PartialEq for Node<'_> {
    fn eq(&self, other: &Node<'_>) -> bool {
        std::ptr::eq(self.schema, other.schema)
    }
}

const BOOL: Type<'static> = Type::Scalar("bool");
const STRING: Type<'static> = Type::Scalar("string");

/// Checks a program; the error is the API server's message.
pub(super) fn check<'a>(
    program: &'a Program,
    source: &'a str,
    schema: &'a Schema,
    is_resource: bool,
    wanted: ExpectedType,
) -> Result<(), String> {
    let this = Type::of(schema, is_resource);
    let mut checker = Checker { source, names: vec![("self", this.clone()), ("oldSelf", Type::Unknown)] };
    match (wanted, checker.type_of(program.expression())) {
        (ExpectedType::Condition, Ok(found)) if found != BOOL && found != Type::Unknown => {
            Err("cel expression must evaluate to a bool".to_owned())
        }
        (ExpectedType::Message, Ok(found)) if found != STRING && found != Type::Unknown => {
            Err("messageExpression must evaluate to a string".to_owned())
        }
        (_, Ok(_)) => Ok(()),
        (ExpectedType::Condition, Err(mistake)) => {
            Err(format!("compilation failed: {}", mistake.render(source)))
        }
        (ExpectedType::Message, Err(mistake)) => {
            Err(format!("messageExpression compilation failed: {}", mistake.render(source)))
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum ExpectedType {
    Condition,
    Message,
}

struct TypeError {
    message: String,
    /// The position in the source, found by searching its text.
    offset: usize,
}

impl TypeError {
    fn render(&self, source: &str) -> String {
        let before = source.get(..self.offset).unwrap_or_default();
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let text = source.lines().nth(line).unwrap_or_default();
        let dots = ".".repeat(column);
        format!("ERROR: <input>:{}:{}: {}\n | {text}\n | {dots}^", line + 1, column + 1, self.message)
    }
}

impl<'a> Type<'a> {
    fn of(schema: &'a Schema, is_resource: bool) -> Type<'a> {
        match schema.kind {
            Some(SchemaType::Object) => match &schema.additional_properties {
                AdditionalProperties::Of(entry) => Type::Map(Box::new(Type::of(entry, entry.embedded))),
                AdditionalProperties::Any => Type::Map(Box::new(Type::Unknown)),
                AdditionalProperties::Unspecified | AdditionalProperties::Forbidden => {
                    Type::Object(Node { schema, is_resource: is_resource || schema.embedded })
                }
            },
            Some(SchemaType::Array) => Type::List(Box::new(
                schema.items().map_or(Type::Unknown, |items| Type::of(items, items.embedded)),
            )),
            Some(SchemaType::String) => match schema.format.as_ref().map(|format| format.name.as_str()) {
                None => STRING,
                Some("byte") => Type::Scalar("bytes"),
                Some("date" | "date-time" | "datetime" | "duration") => Type::Unknown,
                Some(_) => STRING,
            },
            Some(SchemaType::Integer) => Type::Scalar("int"),
            Some(SchemaType::Number) => Type::Scalar("double"),
            Some(SchemaType::Boolean) => BOOL,
            Some(SchemaType::IntOrString) | None => Type::Unknown,
        }
    }

    /// `None` if there is no such field.
    fn field(&self, name: &str) -> Option<Type<'a>> {
        match self {
            Type::Object(Node { is_resource: true, .. }) if matches!(name, "apiVersion" | "kind") => {
                Some(STRING)
            }
            Type::Object(Node { is_resource: true, .. }) if name == "metadata" => Some(Type::Metadata),
            Type::Object(Node { schema, .. }) => schema
                .properties
                .iter()
                .find(|(declared, _)| super::cel::escaped(declared) == name)
                .map(|(_, property)| Type::of(property, property.embedded)),
            Type::Metadata => matches!(name, "name" | "generateName").then_some(STRING),
            Type::Map(entry) => Some((**entry).clone()),
            Type::Unknown => Some(Type::Unknown),
            Type::Scalar(_) | Type::List(_) => None,
        }
    }

    fn element(&self) -> Type<'a> {
        match self {
            Type::List(item) => (**item).clone(),
            // Iteration over a map yields its keys.
            Type::Map(_) => STRING,
            Type::Unknown | Type::Scalar(_) | Type::Object(_) | Type::Metadata => Type::Unknown,
        }
    }

    fn scalar(&self) -> Option<&'static str> {
        match self {
            Type::Scalar(name) => Some(name),
            Type::Unknown | Type::List(_) | Type::Map(_) | Type::Object(_) | Type::Metadata => None,
        }
    }
}

struct Checker<'a> {
    source: &'a str,
    names: Vec<(&'a str, Type<'a>)>,
}

impl<'a> Checker<'a> {
    fn type_of(&mut self, expression: &'a IdedExpr) -> Result<Type<'a>, TypeError> {
        match &expression.expr {
            Expr::Ident(name) => self.type_of_name(name),
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => BOOL,
                LiteralValue::Int(_) => Type::Scalar("int"),
                LiteralValue::UInt(_) => Type::Scalar("uint"),
                LiteralValue::Double(_) => Type::Scalar("double"),
                LiteralValue::String(_) => STRING,
                LiteralValue::Bytes(_) => Type::Scalar("bytes"),
                LiteralValue::Null => Type::Unknown,
            }),
            Expr::Select(select) => self.type_of_select(select),
            Expr::Call(call) => self.type_of_call(call),
            Expr::Comprehension(comprehension) => self.type_of_comprehension(comprehension),
            Expr::List(list) => {
                let mut items = list
                    .elements
                    .iter()
                    .map(|element| self.type_of(element))
                    .collect::<Result<Vec<_>, _>>()?;
                let first = items.pop().unwrap_or(Type::Unknown);
                let alike = items.iter().all(|item| *item == first);
                Ok(Type::List(Box::new(if alike { first } else { Type::Unknown })))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.type_of(&entry.key)?;
                        self.type_of(&entry.value)?;
                    }
                }
                Ok(Type::Map(Box::new(Type::Unknown)))
            }
            Expr::Struct(_) | Expr::Unspecified => Ok(Type::Unknown),
        }
    }

    fn type_of_name(&self, name: &str) -> Result<Type<'a>, TypeError> {
        if let Some((_, found)) = self.names.iter().rev().find(|(known, _)| *known == name) {
            return Ok(found.clone());
        }
        const TYPES: [&str; 11] =
            ["bool", "bytes", "double", "dyn", "int", "list", "map", "null_type", "string", "type", "uint"];
        if TYPES.contains(&name)
            || NAMESPACES.contains(&name)
            || name.contains("protobuf")
            || name == "google"
        {
            return Ok(Type::Unknown);
        }
        Err(self.undeclared(name, name, 0))
    }

    fn type_of_select(&mut self, select: &'a SelectExpr) -> Result<Type<'a>, TypeError> {
        let operand = self.type_of(&select.operand)?;
        let Some(found) = operand.field(&select.field) else {
            // For `has(self.x)` the position of the whole call is reported.
            let mark = if select.test { "has(".to_owned() } else { format!(".{}", select.field) };
            let offset = self.source.find(&mark).map_or(0, |at| if select.test { at + 3 } else { at });
            return Err(TypeError { message: format!("undefined field '{}'", select.field), offset });
        };
        Ok(if select.test { BOOL } else { found })
    }

    fn type_of_call(&mut self, call: &'a CallExpr) -> Result<Type<'a>, TypeError> {
        let target = call.target.as_ref().map(|target| self.type_of(target)).transpose()?;
        let arguments =
            call.args.iter().map(|argument| self.type_of(argument)).collect::<Result<Vec<_>, _>>()?;
        let name = call.func_name.as_str();
        if let Some(sign) = name.strip_prefix('_').and_then(|name| name.strip_suffix('_'))
            && let [left, right] = arguments.as_slice()
        {
            return self.type_of_operator(name, sign, left, right);
        }
        Ok(match (name, arguments.as_slice()) {
            (operators::LOGICAL_NOT, [operand]) => match operand.scalar() {
                Some(other) if other != "bool" => {
                    return Err(self.no_overload(name, "!", &format!("({other})")));
                }
                _ => BOOL,
            },
            (operators::NEGATE, [operand]) => operand.clone(),
            (operators::INDEX, [collection, _]) => match collection {
                Type::List(item) => (**item).clone(),
                Type::Map(entry) => (**entry).clone(),
                _ => Type::Unknown,
            },
            (operators::CONDITIONAL, [_, one, other]) if one == other => one.clone(),
            (operators::IN | operators::NOT_STRICTLY_FALSE, _) => BOOL,
            (name, _) if name.starts_with(['_', '@']) => Type::Unknown,
            ("size" | "int" | "indexOf" | "lastIndexOf", _) => Type::Scalar("int"),
            (
                "string" | "lowerAscii" | "upperAscii" | "trim" | "join" | "replace" | "format" | "charAt",
                _,
            ) => STRING,
            ("substring" | "quote" | "find", _) => STRING,
            ("double", _) => Type::Scalar("double"),
            ("bool" | "startsWith" | "endsWith" | "matches" | "contains" | "isSorted" | "hasValue", _) => {
                BOOL
            }
            ("isURL" | "isIP" | "isCIDR" | "isQuantity" | "isSemver", _) => BOOL,
            ("filter" | "sort" | "distinct" | "reverse" | "slice", _) => target.unwrap_or(Type::Unknown),
            (name, _) if FUNCTIONS.contains(&name) => Type::Unknown,
            (name, _) => return Err(self.undeclared(name, &format!("{name}("), name.len())),
        })
    }

    fn type_of_operator(
        &self,
        name: &str,
        sign: &str,
        left: &Type<'a>,
        right: &Type<'a>,
    ) -> Result<Type<'a>, TypeError> {
        let mismatch = |fits: fn(&str, &str) -> bool| match (left.scalar(), right.scalar()) {
            (Some(left), Some(right)) if !fits(left, right) => {
                Err(self.no_overload(name, sign, &format!("({left}, {right})")))
            }
            _ => Ok(()),
        };
        const NUMBERS: [&str; 3] = ["int", "uint", "double"];
        match sign {
            "&&" | "||" => mismatch(|left, right| left == "bool" && right == "bool").map(|()| BOOL),
            "==" | "!=" => mismatch(|left, right| left == right).map(|()| BOOL),
            "<" | "<=" | ">" | ">=" => {
                let comparable = |left: &str, right: &str| {
                    left == right || (NUMBERS.contains(&left) && NUMBERS.contains(&right))
                };
                mismatch(comparable).map(|()| BOOL)
            }
            "+" | "-" | "*" | "/" | "%" => {
                mismatch(|left, right| left == right)?;
                Ok(match (left, right) {
                    (Type::List(item), Type::List(_)) if **item == Type::Unknown => right.clone(),
                    (Type::List(_), Type::List(_)) => left.clone(),
                    (left, right) if left == right => left.clone(),
                    _ => Type::Unknown,
                })
            }
            _ => Ok(Type::Unknown),
        }
    }

    fn type_of_comprehension(&mut self, comprehension: &'a ComprehensionExpr) -> Result<Type<'a>, TypeError> {
        let range = self.type_of(&comprehension.iter_range)?;
        let initial = self.type_of(&comprehension.accu_init)?;
        let outside = self.names.len();
        match &comprehension.iter_var2 {
            None => self.names.push((&comprehension.iter_var, range.element())),
            Some(second) => {
                self.names.push((&comprehension.iter_var, Type::Unknown));
                let value = match &range {
                    Type::List(item) | Type::Map(item) => (**item).clone(),
                    _ => Type::Unknown,
                };
                self.names.push((second, value));
            }
        }
        self.names.push((&comprehension.accu_var, initial));
        self.type_of(&comprehension.loop_cond)?;
        let result = self.type_of(&comprehension.loop_step)?;
        self.names.truncate(outside);
        self.names.push((&comprehension.accu_var, result));
        let result = self.type_of(&comprehension.result)?;
        self.names.truncate(outside);
        Ok(result)
    }

    fn undeclared(&self, name: &str, mark: &str, past: usize) -> TypeError {
        let offset = self.source.find(mark).map_or(0, |at| at + past);
        TypeError { message: format!("undeclared reference to '{name}' (in container '')"), offset }
    }

    fn no_overload(&self, name: &str, sign: &str, types: &str) -> TypeError {
        let offset = self.source.find(sign).unwrap_or_default();
        TypeError { message: format!("found no matching overload for '{name}' applied to '{types}'"), offset }
    }
}

const NAMESPACES: [&str; 12] = [
    "base64", "cel", "cidr", "format", "ip", "lists", "math", "optional", "regex", "semver", "sets",
    "strings",
];

/// Functions of the API server's CEL environment whose result type is not modelled.
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &[
    "duration", "timestamp", "type", "dyn", "bytes", "uint", "matches", "split", "findAll", "sum", "min", "max",
    "flatten", "sortBy", "range", "transformList", "transformMap", "transformMapEntry", "exists_one", "existsOne",
    "all", "exists", "map", "bind", "index", "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek",
    "getDayOfYear", "getHours", "getMinutes", "getSeconds", "getMilliseconds", "url", "getScheme", "getHost",
    "getHostname", "getPort", "getEscapedPath", "getQuery", "ip", "cidr", "family", "isUnspecified", "isLoopback",
    "isLinkLocalMulticast", "isLinkLocalUnicast", "isGlobalUnicast", "isCanonical", "containsIP", "containsCIDR",
    "masked", "prefixLength", "quantity", "sign", "isGreaterThan", "isLessThan", "compareTo", "asInteger",
    "asApproximateFloat", "isInteger", "add", "sub", "equivalent", "intersects", "of", "none", "ofNonZeroValue",
    "value", "or", "orValue", "optMap", "optFlatMap", "encode", "decode", "semver", "major", "minor", "patch",
    "named", "validate", "dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName", "dns1123LabelPrefix",
    "dns1123SubdomainPrefix", "dns1035LabelPrefix", "labelValue", "uri", "uuid", "byte", "date", "datetime",
    "greatest", "least", "ceil", "floor", "round", "trunc", "abs", "isNaN", "isInf", "isFinite", "bitAnd", "bitOr",
    "bitXor", "bitNot", "bitShiftLeft", "bitShiftRight", "sqrt", "jsonpatch", "first", "last",
];
