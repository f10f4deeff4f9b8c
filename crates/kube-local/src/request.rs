//! Parsing of a request's path and query.

use http::{Method, Uri};
use serde::{Deserialize, Deserializer};

use super::status_error::StatusError;

/// A path of the Kubernetes API.
#[derive(Debug, PartialEq, Eq)]
pub enum Path<'a> {
    /// Segments of a path outside any resource: `/api`, `/apis/apps`, `/version`, `/openapi/v3`, …
    Meta(Vec<&'a str>),
    Resource {
        group: &'a str,
        version: &'a str,
        namespace: Option<&'a str>,
        plural: &'a str,
        name: Option<&'a str>,
        subresource: Option<&'a str>,
    },
}

impl<'a> Path<'a> {
    pub fn parse(path: &'a str) -> Path<'a> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Path::Meta(segments),
        };
        let (namespace, rest) = match rest {
            // `namespaces/x` and its subresources address the namespace itself.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
            rest => (None, rest),
        };
        match rest {
            [plural] => Path::Resource { group, version, namespace, plural, name: None, subresource: None },
            [plural, name] => {
                Path::Resource { group, version, namespace, plural, name: Some(name), subresource: None }
            }
            [plural, name, subresource] => Path::Resource {
                group,
                version,
                namespace,
                plural,
                name: Some(name),
                subresource: Some(subresource),
            },
            _ => Path::Meta(segments),
        }
    }
}

/// The verb of a request, as authorization names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn of(method: &Method, named: bool, params: &Params) -> Result<Verb, StatusError> {
        Ok(match (method, named) {
            (&Method::GET | &Method::HEAD, _) if params.watch => Verb::Watch,
            (&Method::GET | &Method::HEAD, true) => Verb::Get,
            (&Method::GET | &Method::HEAD, false) => Verb::List,
            (&Method::POST, _) => Verb::Create,
            (&Method::PUT, true) => Verb::Update,
            (&Method::PATCH, true) => Verb::Patch,
            (&Method::DELETE, true) => Verb::Delete,
            (&Method::DELETE, false) => Verb::DeleteCollection,
            _ => return Err(StatusError::method_not_allowed()),
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    /// The kind that this verb's query parameters form.
    pub fn options(self) -> &'static str {
        match self {
            Verb::Get => "GetOptions",
            Verb::List | Verb::Watch => "ListOptions",
            Verb::Create => "CreateOptions",
            Verb::Update => "UpdateOptions",
            Verb::Patch => "PatchOptions",
            Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
        }
    }

    pub fn writes(self) -> bool {
        !matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }
}

/// The query parameters of every verb.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Params {
    #[serde(deserialize_with = "flag")]
    pub watch: bool,
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: String,
    #[serde(deserialize_with = "number")]
    pub limit: Option<u64>,
    #[serde(rename = "continue")]
    pub continue_token: String,
    #[serde(deserialize_with = "number")]
    pub timeout_seconds: Option<u64>,
    #[serde(deserialize_with = "flag")]
    pub allow_watch_bookmarks: bool,
    #[serde(deserialize_with = "flag")]
    pub send_initial_events: bool,
    pub dry_run: String,
    pub field_manager: String,
    pub field_validation: String,
    #[serde(deserialize_with = "flag")]
    pub force: bool,
    pub propagation_policy: String,
    #[serde(deserialize_with = "number")]
    pub grace_period_seconds: Option<u64>,
    pub include_object: String,
}

impl Params {
    pub fn of(uri: &Uri) -> Result<Params, StatusError> {
        axum::extract::Query::<Params>::try_from_uri(uri)
            .map(|query| query.0)
            .map_err(|error| StatusError::bad_request(error.body_text()))
    }

    pub fn is_dry_run(&self, verb: Verb) -> Result<bool, StatusError> {
        match self.dry_run.as_str() {
            "" => Ok(false),
            "All" => Ok(true),
            other => {
                let why = format!("dryRun: Unsupported value: [{other:?}]: supported values: \"All\"");
                Err(StatusError::invalid_options(verb.options(), &why))
            }
        }
    }
}

/// True unless absent or a word for false, as the API server parses flags.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(!matches!(text.to_ascii_lowercase().as_str(), "0" | "false"))
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| serde::de::Error::custom(format!("{text:?} is not a number")))
}

/// The representation of a response.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum View {
    Plain,
    Table,
    /// `PartialObjectMetadata`, alone or as a list.
    Metadata,
}

impl View {
    /// The first supported representation of an Accept header.
    pub fn accepted(accept: &str) -> Option<View> {
        if accept.is_empty() {
            return Some(View::Plain);
        }
        for form in accept.split(',') {
            let mut parameters = form.split(';').map(str::trim).skip(1);
            match parameters.find_map(|parameter| parameter.strip_prefix("as=")) {
                Some("Table") => return Some(View::Table),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Some(View::Metadata),
                _ => {}
            }
            let media = form.split(';').next().unwrap_or_default().trim();
            if matches!(media, "application/json" | "application/*" | "*/*") {
                return Some(View::Plain);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource<'a>(
        group: &'a str,
        namespace: Option<&'a str>,
        plural: &'a str,
        name: Option<&'a str>,
        subresource: Option<&'a str>,
    ) -> Path<'a> {
        Path::Resource { group, version: "v1", namespace, plural, name, subresource }
    }

    #[test]
    fn every_shape_of_path_is_parsed() {
        assert_eq!(Path::parse("/api/v1/pods"), resource("", None, "pods", None, None));
        assert_eq!(
            Path::parse("/api/v1/namespaces/a/pods/b"),
            resource("", Some("a"), "pods", Some("b"), None)
        );
        assert_eq!(Path::parse("/api/v1/namespaces"), resource("", None, "namespaces", None, None));
        assert_eq!(Path::parse("/api/v1/namespaces/a"), resource("", None, "namespaces", Some("a"), None));
        assert_eq!(
            Path::parse("/api/v1/namespaces/a/finalize"),
            resource("", None, "namespaces", Some("a"), Some("finalize"))
        );
        assert_eq!(
            Path::parse("/apis/apps/v1/namespaces/a/deployments/b/scale"),
            resource("apps", Some("a"), "deployments", Some("b"), Some("scale"))
        );
        assert_eq!(Path::parse("/apis/apps/v1"), Path::Meta(vec!["apis", "apps", "v1"]));
        assert_eq!(Path::parse("/"), Path::Meta(vec![]));
    }

    #[test]
    fn the_first_acceptable_view_wins() {
        assert_eq!(
            View::accepted("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Some(View::Table)
        );
        assert_eq!(View::accepted("application/vnd.kubernetes.protobuf,application/json"), Some(View::Plain));
        assert_eq!(
            View::accepted("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Some(View::Metadata)
        );
    }
}
