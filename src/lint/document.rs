//! YAML documents whose fields know their line.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use super::{Code, Finding};

/// A file, or standard input.
#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub text: String,
}

/// A Kubernetes object in a file.
pub struct Document {
    pub file: String,
    /// With its namespace.
    pub value: Value,
    lines: Spanned<Node>,
}

impl Document {
    pub fn api_version(&self) -> &str {
        self.value["apiVersion"].as_str().unwrap_or_default()
    }

    /// Empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version().rsplit_once('/').map_or("", |(group, _)| group)
    }

    pub fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.value["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    /// The line of a field such as `spec.analysis.metrics[0].name`, or of the innermost
    /// part of it that is there.
    pub fn line_of(&self, path: &str) -> usize {
        let mut node = &self.lines;
        let mut line = node.referenced.line();
        let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
        for step in steps {
            let step = step.trim_matches(['"', '\'']);
            let next = match &node.value {
                Node::Map(fields) => fields.iter().find(|(name, _)| name.value == step),
                Node::List(items) => match step.parse::<usize>().ok().and_then(|at| items.get(at)) {
                    Some(item) => {
                        (line, node) = (item.referenced.line(), item);
                        continue;
                    }
                    None => None,
                },
                Node::Scalar(_) => None,
            };
            let Some((name, value)) = next else { break };
            (line, node) = (name.referenced.line(), value);
        }
        line as usize
    }

    pub fn finding(&self, code: Code, path: &str, message: impl Into<String>) -> Finding {
        let (kind, namespace, name) = (self.kind(), self.namespace(), self.name());
        Finding {
            code,
            file: self.file.clone(),
            line: self.line_of(path),
            object: format!("{kind} {namespace}/{name}"),
            message: message.into(),
        }
    }
}

/// The objects of a file. Items of a List are objects too.
pub fn parse(source: &Source, namespace: &str) -> Result<Vec<Document>, Finding> {
    let broken = |line: usize, message: String| Finding {
        code: Code::NotYaml,
        file: source.name.clone(),
        line,
        object: String::new(),
        message,
    };
    let nodes: Vec<Spanned<Node>> = serde_saphyr::from_multiple(&source.text).map_err(|error| {
        let line = error.location().map_or(1, |at| at.line() as usize);
        let text = error.without_snippet().to_string();
        broken(line, format!("it is not YAML: {}", text.lines().next().unwrap_or_default()))
    })?;
    let mut documents = Vec::new();
    for node in nodes.into_iter().flat_map(items) {
        let mut value = Value::from(&node.value);
        if value.is_null() {
            continue;
        }
        let line = node.referenced.line() as usize;
        for (field, path) in
            [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("metadata.name", "/metadata/name")]
        {
            let generated = field == "metadata.name" && value.pointer("/metadata/generateName").is_some();
            if !generated && value.pointer(path).and_then(Value::as_str).is_none_or(str::is_empty) {
                return Err(broken(
                    line,
                    format!("a document has no {field}, so it is no Kubernetes object"),
                ));
            }
        }
        let own = &mut value["metadata"]["namespace"];
        if own.is_null() {
            *own = namespace.into();
        }
        documents.push(Document { file: source.name.clone(), value, lines: node });
    }
    Ok(documents)
}

fn items(node: Spanned<Node>) -> Vec<Spanned<Node>> {
    let Node::Map(fields) = &node.value else { return vec![node] };
    let is_list = fields.iter().any(|(name, value)| {
        name.value == "kind" && matches!(&value.value, Node::Scalar(Value::String(kind)) if kind == "List")
    });
    let items = fields.iter().find_map(|(name, value)| match &value.value {
        Node::List(items) if is_list && name.value == "items" => Some(items.clone()),
        _ => None,
    });
    items.unwrap_or_else(|| vec![node])
}

/// A value and the places of its parts.
#[derive(Clone)]
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar(Value),
}

impl From<&Node> for Value {
    fn from(node: &Node) -> Self {
        match node {
            Node::Map(fields) => {
                let field = |(name, value): &(Spanned<String>, Spanned<Node>)| {
                    (name.value.clone(), Value::from(&value.value))
                };
                Self::Object(fields.iter().map(field).collect::<Map<_, _>>())
            }
            Node::List(items) => items.iter().map(|item| Value::from(&item.value)).collect(),
            Node::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_know_their_line_and_missing_ones_that_of_their_parent() {
        let text = "\
# a comment
apiVersion: v1
kind: Pod
metadata: {name: web}
---
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata:
  name: shop
spec:
  analysis:
    metrics:
    - name: one
    - name: two
      interval: 5s
";
        let source = Source { name: "a.yaml".to_owned(), text: text.to_owned() };
        let documents = parse(&source, "default").unwrap();
        assert_eq!(documents.iter().map(Document::kind).collect::<Vec<_>>(), ["Pod", "Canary"]);
        let canary = &documents[1];
        assert_eq!(canary.namespace(), "default");
        assert_eq!(canary.value["spec"]["analysis"]["metrics"][1]["interval"], "5s");
        for (path, line) in [
            ("spec.analysis", 11),
            ("spec.analysis.metrics[1].interval", 15),
            ("spec.analysis.metrics[1].query", 14),
            ("spec.service.port", 10),
            ("metadata.name", 9),
        ] {
            assert_eq!(canary.line_of(path), line, "{path}");
        }
    }

    #[test]
    fn what_is_no_object_is_found_with_its_line() {
        let parsed = |text: &str| {
            let source = Source { name: "a.yaml".to_owned(), text: text.to_owned() };
            parse(&source, "default").map(|documents| documents.len())
        };
        let error = parsed("a: [1,\nb: 2\n").unwrap_err();
        assert!(error.message.starts_with("it is not YAML"), "{error}");
        let error = parsed("kind: Pod\nmetadata: {name: a}\n---\n\napiVersion: v1\nkind: Pod\n").unwrap_err();
        assert_eq!((error.line, error.code), (1, Code::NotYaml), "{error}");
        assert!(error.message.contains("no apiVersion"), "{error}");
        assert_eq!(parsed("---\n# nothing\n---\n").unwrap(), 0);
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n";
        assert_eq!(parsed(list).unwrap(), 1);
    }
}
