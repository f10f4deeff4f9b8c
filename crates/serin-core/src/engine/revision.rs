//! The revision of a target.
//!
//! A revision is a digest of the pod template and of the ConfigMaps and Secrets
//! it reads. It changes when, and only when, pods would have to be restarted to
//! run the present template: not when replicas are scaled, metadata of the
//! workload is touched, a default is spelled out or a quantity is respelled.
//!
//! The digest is taken over a canonical text, never over in-memory types, so
//! neither a new Serin nor a new client library can change it. Its version is
//! part of the revision (`v1-…`): when a better one comes, recorded revisions
//! are compared in their own version ([`HashVersion::of`]), and no release
//! starts because Serin was upgraded. The golden files under
//! `tests/golden/revision` hold every supported version; they only grow.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// How a canonical text is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashVersion {
    V1,
}

impl HashVersion {
    /// The version for new Canaries.
    pub const CURRENT: Self = Self::V1;

    /// The version of a recorded revision; the current one for anything else.
    pub fn of(recorded: Option<&str>) -> Self {
        match recorded.and_then(|revision| revision.split_once('-')) {
            Some(("v1", _)) => Self::V1,
            _ => Self::CURRENT,
        }
    }

    fn tag(self) -> &'static str {
        match self {
            Self::V1 => "v1",
        }
    }
}

/// A ConfigMap or Secret that the template reads, by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigRef {
    pub kind: String,
    pub name: String,
}

/// The configs a template reads, with the object as the API server returned it,
/// or none where an optional one does not exist.
pub type Configs<'a> = BTreeMap<ConfigRef, Option<&'a Value>>;

/// The revision of a pod template (`spec.template` as the API server returned
/// it) together with its configs.
pub fn revision(version: HashVersion, template: &Value, configs: &Configs<'_>) -> String {
    let digest = Sha256::digest(canonical(version, template, configs));
    let mut text = format!("{}-", version.tag());
    for byte in &digest[..8] {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A short digest of one config, to name the ones that changed.
pub fn config_digest(config: Option<&Value>) -> String {
    let mut text = String::new();
    write_config(config, &mut text);
    Sha256::digest(text)[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text that is digested: one line for the template, one for each config.
pub fn canonical(version: HashVersion, template: &Value, configs: &Configs<'_>) -> String {
    let HashVersion::V1 = version;
    let mut text = String::with_capacity(4096);
    text.push_str("serin revision v1\ntemplate ");
    write_template(template, &mut text);
    for (ConfigRef { kind, name }, config) in configs {
        let _ = write!(text, "\n{kind} {name} ");
        write_config(*config, &mut text);
    }
    text.push('\n');
    text
}

/// Labels, annotations and the pod spec; a template's other metadata never
/// reaches a pod.
fn write_template(template: &Value, out: &mut String) {
    let map = |name: &str| {
        let mut map = template["metadata"][name].as_object().cloned().unwrap_or_default();
        map.remove("pod-template-hash");
        Value::Object(map)
    };
    out.push_str("{\"annotations\":");
    write_value("annotations", &map("annotations"), out);
    out.push_str(",\"labels\":");
    write_value("labels", &map("labels"), out);
    out.push_str(",\"spec\":");
    match &template["spec"] {
        Value::Object(spec) => write_object("spec", spec, out),
        _ => out.push_str("{}"),
    }
    out.push('}');
}

/// Contents only: pods do not see a config's metadata.
fn write_config(config: Option<&Value>, out: &mut String) {
    let Some(config) = config else {
        return out.push_str("absent");
    };
    let contents = ["data", "binaryData"].into_iter().filter_map(|part| {
        let entries = config.get(part)?.as_object().filter(|entries| !entries.is_empty())?;
        Some((part.to_owned(), Value::Object(entries.clone())))
    });
    write_plain(&Value::Object(contents.collect()), out);
}

fn write_value(parent: &str, value: &Value, out: &mut String) {
    match value {
        Value::Object(map) if FREE_FORM_MAPS.contains(&parent) => {
            write_plain(&Value::Object(map.clone()), out)
        }
        Value::Object(map) if QUANTITIES.contains(&parent) => {
            write_entries(map.iter().map(|(key, value)| (key, quantity(value))), out);
        }
        Value::Object(map) => write_object(parent, map, out),
        Value::Array(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(parent, item, out);
            }
            out.push(']');
        }
        plain => write_plain(plain, out),
    }
}

/// Keys in order; without nulls, empty lists and what would be defaulted.
fn write_object(parent: &str, map: &Map<String, Value>, out: &mut String) {
    let mut entries: Vec<_> =
        map.iter().filter(|(key, value)| !is_default_or_empty(parent, key, value, map)).collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let _ = write!(out, "{}:", Value::from(key.as_str()));
        if SINGLE_QUANTITIES.contains(&key.as_str()) {
            write_plain(&quantity(value), out);
        } else {
            write_value(key, value, out);
        }
    }
    out.push('}');
}

/// Any value as it is, with the keys of objects in order.
fn write_plain(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => write_entries(map.iter().map(|(key, value)| (key, Cow::Borrowed(value))), out),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn write_entries<'a>(entries: impl Iterator<Item = (&'a String, Cow<'a, Value>)>, out: &mut String) {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    out.push('{');
    for (index, (key, value)) in entries.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let _ = write!(out, "{}:", Value::from(key.as_str()));
        write_plain(&value, out);
    }
    out.push('}');
}

/// Maps whose keys users choose: nothing in them is a default.
const FREE_FORM_MAPS: [&str; 4] = ["annotations", "labels", "matchLabels", "nodeSelector"];
/// Maps from a resource's name to a quantity.
const QUANTITIES: [&str; 4] = ["limits", "requests", "overhead", "capacity"];
/// Fields that hold one quantity.
const SINGLE_QUANTITIES: [&str; 2] = ["sizeLimit", "divisor"];

/// Is this entry one that the API server would have filled in by itself, or
/// one that means the same as leaving it out?
fn is_default_or_empty(parent: &str, key: &str, value: &Value, siblings: &Map<String, Value>) -> bool {
    match (parent, key) {
        _ if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => true,
        // The deprecated twin, kept in step by the API server.
        ("spec", "serviceAccount") => siblings.get("serviceAccountName") == Some(value),
        ("spec", "securityContext") | (_, "resources") => value.as_object().is_some_and(Map::is_empty),
        ("containers" | "initContainers", "imagePullPolicy") => {
            let image = siblings.get("image").and_then(Value::as_str).unwrap_or_default();
            value == if pulls_always(image) { "Always" } else { "IfNotPresent" }
        }
        ("env", "value") => value == "",
        _ => DEFAULTS.iter().any(|(parents, name, default)| {
            *name == key && parents.contains(&parent) && default.matches(value)
        }),
    }
}

/// The API server's rule: no tag or `latest`, and no digest.
fn pulls_always(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

enum DefaultValue {
    Text(&'static str),
    Number(i64),
    True,
}

impl DefaultValue {
    fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Text(text) => value == text,
            Self::Number(number) => value == number,
            Self::True => value == true,
        }
    }
}

const PROBES: &[&str] = &["livenessProbe", "readinessProbe", "startupProbe"];
const CONTAINERS: &[&str] = &["containers", "initContainers"];

/// Under which parent, which field, defaults to what. Part of version v1.
const DEFAULTS: [(&[&str], &str, DefaultValue); 20] = [
    (&["spec"], "restartPolicy", DefaultValue::Text("Always")),
    (&["spec"], "dnsPolicy", DefaultValue::Text("ClusterFirst")),
    (&["spec"], "schedulerName", DefaultValue::Text("default-scheduler")),
    (&["spec"], "terminationGracePeriodSeconds", DefaultValue::Number(30)),
    (&["spec"], "enableServiceLinks", DefaultValue::True),
    (CONTAINERS, "terminationMessagePath", DefaultValue::Text("/dev/termination-log")),
    (CONTAINERS, "terminationMessagePolicy", DefaultValue::Text("File")),
    (&["ports"], "protocol", DefaultValue::Text("TCP")),
    (PROBES, "timeoutSeconds", DefaultValue::Number(1)),
    (PROBES, "periodSeconds", DefaultValue::Number(10)),
    (PROBES, "successThreshold", DefaultValue::Number(1)),
    (PROBES, "failureThreshold", DefaultValue::Number(3)),
    (&["httpGet"], "scheme", DefaultValue::Text("HTTP")),
    (&["httpGet"], "path", DefaultValue::Text("/")),
    (&["grpc"], "service", DefaultValue::Text("")),
    (&["fieldRef"], "apiVersion", DefaultValue::Text("v1")),
    (&["hostPath"], "type", DefaultValue::Text("")),
    (&["secret", "configMap", "projected", "downwardAPI"], "defaultMode", DefaultValue::Number(420)),
    (&["serviceAccountToken"], "expirationSeconds", DefaultValue::Number(3600)),
    (&["resourceFieldRef"], "divisor", DefaultValue::Text("0")),
];

/// A quantity as one spelling of its value, in billionths; any other text as
/// it is.
fn quantity(value: &Value) -> Cow<'_, Value> {
    let text = match value {
        Value::String(text) => Cow::Borrowed(text.as_str()),
        Value::Number(number) => Cow::Owned(number.to_string()),
        _ => return Cow::Borrowed(value),
    };
    billionths(&text).map_or(Cow::Borrowed(value), |n| Cow::Owned(Value::from(format!("{n}n"))))
}

fn billionths(text: &str) -> Option<i128> {
    let number_end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || fraction.contains(['+', '-']) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    // "1.5" is 15 with one decimal too many.
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (base, power) = match suffix {
        "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => {
            (1024_i128.pow("KMGTPE".find(&suffix[..1])? as u32 + 1), 0)
        }
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        exponent => (1, exponent.strip_prefix(['e', 'E'])?.parse().ok().filter(|p| (-9..=18).contains(p))?),
    };
    let shift = 9 + power - fraction.len() as i32;
    let scaled = digits.checked_mul(base)?;
    if shift >= 0 {
        scaled.checked_mul(10_i128.checked_pow(shift as u32)?)
    } else {
        let divisor = 10_i128.pow(shift.unsigned_abs());
        (scaled % divisor == 0).then(|| scaled / divisor)
    }
}
