//! Decoding of protobuf bodies, in which kubectl's `create` and other Go clients
//! send built-in kinds. Responses are always JSON, which these clients accept
//! too.
//!
//! The field numbers are a table, `fields.txt`, written by
//! `testbed/protobuf-fields`; the rest of this file is Kubernetes' mapping of
//! protobuf to JSON.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The first bytes of every such body.
const MAGIC: &[u8] = b"k8s\0";

/// Fields that exist in protobuf only; in JSON their content is in the parent.
const INLINED_FIELDS: &[&str] =
    &["handler", "volumeSource", "localObjectReference", "ephemeralContainerCommon"];

/// Deeper than any valid object.
const MAX_DEPTH: usize = 64;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("the body does not begin as Kubernetes protobuf does")]
    NoMagic,
    #[error("no protobuf form of {0} is known")]
    UnknownKind(String),
    #[error("the body ends in the middle of a field")]
    Truncated,
    #[error("the body uses a wire type that Kubernetes does not")]
    WireType,
    #[error("a text in the body is not UTF-8")]
    InvalidUtf8,
    #[error("the body is nested too deeply")]
    TooDeep,
}

/// The object in a protobuf body, as JSON.
pub fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let body = body.strip_prefix(MAGIC).ok_or(DecodeError::NoMagic)?;
    // runtime.Unknown { typeMeta = 1 { apiVersion = 1, kind = 2 }, raw = 2 }
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Wire(body) {
        match field? {
            (1, Content::Bytes(type_meta)) => {
                for field in Wire(type_meta) {
                    match field? {
                        (1, Content::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Content::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Content::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let message = message_of(&api_version, &kind);
    if !MESSAGES.contains_key(message.as_str()) {
        return Err(DecodeError::UnknownKind(format!("{kind} in {api_version}")));
    }
    let mut object = message_value(&message, raw, 0)?;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    Ok(object)
}

/// `apps/v1`, `Deployment` → `apps.v1.Deployment`
fn message_of(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return "meta.v1.DeleteOptions".to_owned();
    }
    match api_version.split_once('/') {
        None => format!("core.{api_version}.{kind}"),
        Some((group, version)) => {
            format!("{}.{version}.{kind}", group.split('.').next().unwrap_or_default())
        }
    }
}

struct Field {
    name: &'static str,
    shape: Cardinality,
    kind: FieldType,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cardinality {
    One,
    Many,
    /// A map with string keys.
    Entries,
}

#[derive(Clone, Copy)]
enum FieldType {
    Text,
    Bytes,
    Int,
    Bool,
    /// The same behind a pointer: a zero is kept.
    OptionalText,
    OptionalInt,
    OptionalBool,
    Message(&'static str),
}

type MessageFields = HashMap<u64, Field>;

static MESSAGES: LazyLock<HashMap<&'static str, MessageFields>> = LazyLock::new(|| {
    include_str!("fields.txt")
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.filter_map(parse_field).collect()))
        })
        .collect()
});

/// `ports=6:[core.v1.ContainerPort]`
fn parse_field(text: &'static str) -> Option<(u64, Field)> {
    let (name, rest) = text.split_once('=')?;
    let (number, kind) = rest.split_once(':')?;
    let inner = |open, close| kind.strip_prefix(open).and_then(|kind| kind.strip_suffix(close));
    let (shape, kind) = match (inner('[', ']'), inner('{', '}')) {
        (Some(kind), _) => (Cardinality::Many, kind),
        (_, Some(kind)) => (Cardinality::Entries, kind),
        _ => (Cardinality::One, kind),
    };
    let kind = match kind {
        "string" => FieldType::Text,
        "bytes" => FieldType::Bytes,
        "int" => FieldType::Int,
        "bool" => FieldType::Bool,
        "string?" => FieldType::OptionalText,
        "int?" => FieldType::OptionalInt,
        "bool?" => FieldType::OptionalBool,
        message => FieldType::Message(message),
    };
    Some((number.parse().ok()?, Field { name, shape, kind }))
}

fn message_value(message: &str, bytes: &[u8], depth: usize) -> Result<Value, DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::TooDeep);
    }
    let map = message_map(message, bytes, depth)?;
    let int = |name: &str| map.get(name).and_then(Value::as_i64).unwrap_or_default();
    Ok(match message {
        "meta.v1.Time" | "meta.v1.MicroTime" => {
            let at = Timestamp::new(int("seconds"), i32::try_from(int("nanos")).unwrap_or_default());
            match at {
                Ok(at) if !map.is_empty() => json!(at.to_string()),
                _ => Value::Null,
            }
        }
        "intstr.IntOrString" if int("type") == 1 => map.get("strVal").cloned().unwrap_or_default(),
        "intstr.IntOrString" => json!(int("intVal")),
        "resource.Quantity" => map.get("string").cloned().unwrap_or_else(|| json!("0")),
        "meta.v1.FieldsV1" => {
            let raw = map.get("Raw").and_then(|raw| STANDARD.decode(raw.as_str()?).ok());
            raw.and_then(|raw| serde_json::from_slice(&raw).ok()).unwrap_or_default()
        }
        "authentication.v1.ExtraValue" | "authorization.v1.ExtraValue" => {
            map.get("items").cloned().unwrap_or_else(|| json!([]))
        }
        _ => Value::Object(map),
    })
}

fn message_map(message: &str, bytes: &[u8], depth: usize) -> Result<Map<String, Value>, DecodeError> {
    let mut map = Map::new();
    let Some(fields) = MESSAGES.get(message) else { return Ok(map) };
    for field in Wire(bytes) {
        let (number, content) = field?;
        // A field of a newer Kubernetes than the table is dropped, like unknown fields.
        let Some(field) = fields.get(&number) else { continue };
        match field.shape {
            Cardinality::One if INLINED_FIELDS.contains(&field.name) => {
                if let Value::Object(inner) = value(field.kind, content, depth)? {
                    map.extend(inner);
                }
            }
            Cardinality::One => {
                let value = value(field.kind, content, depth)?;
                if !is_absent(field.kind, &value) {
                    map.insert(field.name.to_owned(), value);
                }
            }
            Cardinality::Many => {
                let value = value(field.kind, content, depth)?;
                if let Some(list) = map.entry(field.name).or_insert_with(|| json!([])).as_array_mut() {
                    list.push(value);
                }
            }
            Cardinality::Entries => {
                let Content::Bytes(entry) = content else { return Err(DecodeError::WireType) };
                let (mut key, mut held) = (String::new(), value(field.kind, Content::Bytes(&[]), depth)?);
                for part in Wire(entry) {
                    match part? {
                        (1, Content::Bytes(bytes)) => key = text(bytes)?,
                        (2, content) => held = value(field.kind, content, depth)?,
                        _ => {}
                    }
                }
                if let Some(entries) = map.entry(field.name).or_insert_with(|| json!({})).as_object_mut() {
                    entries.insert(key, held);
                }
            }
        }
    }
    Ok(map)
}

fn value(kind: FieldType, content: Content<'_>, depth: usize) -> Result<Value, DecodeError> {
    match (kind, content) {
        (FieldType::Text | FieldType::OptionalText, Content::Bytes(bytes)) => Ok(json!(text(bytes)?)),
        (FieldType::Bytes, Content::Bytes(bytes)) => Ok(json!(STANDARD.encode(bytes))),
        // Negative numbers are sent in two's complement, whatever their width.
        (FieldType::Int | FieldType::OptionalInt, Content::Varint(number)) => Ok(json!(number.cast_signed())),
        (FieldType::Bool | FieldType::OptionalBool, Content::Varint(number)) => Ok(json!(number != 0)),
        (FieldType::Message(message), Content::Bytes(bytes)) => message_value(message, bytes, depth + 1),
        _ => Err(DecodeError::WireType),
    }
}

/// Go sends every field that is not behind a pointer; JSON omits zeros.
fn is_absent(kind: FieldType, value: &Value) -> bool {
    match kind {
        FieldType::Text | FieldType::Bytes => value == "",
        FieldType::Int => value == 0,
        FieldType::Bool => value == false,
        FieldType::Message(_) => value.is_null(),
        FieldType::OptionalText | FieldType::OptionalInt | FieldType::OptionalBool => false,
    }
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::InvalidUtf8)
}

enum Content<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in wire order.
struct Wire<'a>(&'a [u8]);

impl Wire<'_> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError::Truncated)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Truncated)
    }
}

impl<'a> Wire<'a> {
    fn field(&mut self) -> Result<(u64, Content<'a>), DecodeError> {
        let tag = self.varint()?;
        let content = match tag & 7 {
            0 => Content::Varint(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
                self.0 = rest;
                Content::Bytes(bytes)
            }
            _ => return Err(DecodeError::WireType),
        };
        Ok((tag >> 3, content))
    }
}

impl<'a> Iterator for Wire<'a> {
    type Item = Result<(u64, Content<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with bytes; every length here is below 128.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()][..], content].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &type_meta), &field(2, raw)].concat()
    }

    #[test]
    fn a_config_map_is_decoded_completely() {
        let metadata = [field(1, b"a"), field(2, b""), vec![7 << 3, 0], field(8, b"")].concat();
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let raw = [field(1, &metadata), field(2, &entry), vec![4 << 3, 0]].concat();
        assert_eq!(
            decode(&body("v1", "ConfigMap", &raw)),
            Ok(json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a"}, "data": {"k": "v"}, "immutable": false,
            }))
        );
    }

    #[test]
    fn fields_inlined_by_go_are_inlined() {
        let volume = [field(1, b"tmp"), field(2, &field(2, b""))].concat();
        let pod = decode(&body("v1", "Pod", &field(2, &field(1, &volume)))).unwrap();
        assert_eq!(pod["spec"]["volumes"], json!([{"name": "tmp", "emptyDir": {}}]));
    }

    #[test]
    fn malformed_bodies_are_refused_without_panic() {
        assert_eq!(decode(b"{}"), Err(DecodeError::NoMagic));
        assert_eq!(
            decode(&body("v1", "Nothing", b"")),
            Err(DecodeError::UnknownKind("Nothing in v1".into()))
        );
        let whole = body("apps/v1", "Deployment", &field(2, &[vec![8, 3], field(3, b"\x12\x00")].concat()));
        assert!(decode(&whole).is_ok());
        for cut in 0..whole.len() {
            let _ = decode(&whole[..cut]);
            let mut flipped = whole.clone();
            flipped[cut] ^= 0xff;
            let _ = decode(&flipped);
        }
    }
}
