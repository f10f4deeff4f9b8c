//! Authentication by bearer token; authorization by groups and a list of grants.
//!
//! Members of `system:masters` may do everything, as on a real cluster; other
//! users only what a [`Grant`] allows. Roles and bindings are not served: grants
//! are passed in when the server is created.

use http::{HeaderMap, header};
use serde_json::{Value, json};

use super::kinds::Resource;
use super::request::Verb;
use super::schema::FieldError;
use super::status_error::StatusError;

/// The group whose members may do everything.
pub const SYSTEM_MASTERS: &str = "system:masters";

/// The user of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
}

impl Identity {
    /// The administrator, a member of [`SYSTEM_MASTERS`].
    pub fn admin() -> Identity {
        Identity {
            user: "serin-admin".into(),
            groups: vec![SYSTEM_MASTERS.into(), "system:authenticated".into()],
        }
    }
}

/// One permission of a user or a group; `*` matches anything.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Name of a user or a group.
    pub subject: String,
    pub verb: String,
    pub group: String,
    /// With the subresource, if any: `deployments/scale`.
    pub resource: String,
    pub namespace: String,
}

/// Attributes of a request, as in a SubjectAccessReview.
pub struct RequestAttributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: String,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Users and their permissions.
#[derive(Default)]
pub struct Access {
    /// Identities by bearer token.
    pub users: Vec<(String, Identity)>,
    pub grants: Vec<Grant>,
}

impl Access {
    /// The identity of the request's bearer token; 401 without a valid one.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Identity, StatusError> {
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "))
            .ok_or_else(StatusError::unauthorized)?;
        self.identify(token).cloned().ok_or_else(StatusError::unauthorized)
    }

    fn identify(&self, token: &str) -> Option<&Identity> {
        self.users.iter().find(|(held, _)| held == token).map(|(_, identity)| identity)
    }

    /// Whether `identity` may make the request.
    pub fn allows(&self, identity: &Identity, requested: &RequestAttributes<'_>) -> bool {
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        identity.groups.iter().any(|group| group == SYSTEM_MASTERS)
            || self.grants.iter().any(|grant| {
                (grant.subject == identity.user || identity.groups.contains(&grant.subject))
                    && fits(&grant.verb, requested.verb)
                    && fits(&grant.group, requested.group)
                    && fits(&grant.resource, &requested.resource)
                    && fits(&grant.namespace, requested.namespace)
            })
    }

    /// Refuses a request that `identity` may not make (403), with the API server's message.
    pub fn check(
        &self,
        identity: &Identity,
        verb: Verb,
        resource: &Resource,
        subresource: Option<&str>,
        namespace: &str,
        name: &str,
    ) -> Result<(), StatusError> {
        let plural = subresource.map_or(resource.plural.clone(), |sub| format!("{}/{sub}", resource.plural));
        let requested = RequestAttributes {
            verb: verb.as_str(),
            group: &resource.group,
            resource: plural,
            namespace,
            name,
        };
        if self.allows(identity, &requested) {
            return Ok(());
        }
        let scope = if namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {namespace:?}")
        };
        let why = format!(
            "User {:?} cannot {} resource {:?} in API group {:?} {scope}",
            identity.user, requested.verb, requested.resource, requested.group
        );
        Err(StatusError::forbidden(resource, requested.name, &why))
    }

    /// Fills in the status of a TokenReview, SubjectAccessReview or SelfSubjectAccessReview.
    pub fn review(
        &self,
        resource: &Resource,
        mut review: Value,
        identity: &Identity,
    ) -> Result<Value, StatusError> {
        let kind = resource.kind.as_str();
        let spec = &review["spec"];
        let is_empty = |field: &str| spec[field].as_str().unwrap_or_default().is_empty();
        let invalid = |error| Err(StatusError::invalid(resource, "", &[error]));
        if kind == "TokenReview" && is_empty("token") {
            return Err(StatusError::bad_request("token is required for TokenReview in authentication"));
        }
        if kind != "TokenReview"
            && !spec["resourceAttributes"].is_object()
            && !spec["nonResourceAttributes"].is_object()
        {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return invalid(FieldError::invalid("spec.resourceAttributes", &Value::Null, detail));
        }
        if kind == "SubjectAccessReview" && is_empty("user") && !spec["groups"].is_array() {
            let detail = "at least one of user or group must be specified";
            return invalid(FieldError::invalid("spec.user", &json!(""), detail));
        }
        let status = if kind == "TokenReview" {
            match spec["token"].as_str().and_then(|token| self.identify(token)) {
                Some(identity) => json!({
                    "authenticated": true,
                    "user": { "username": identity.user, "groups": identity.groups },
                }),
                None => json!({ "user": {}, "error": "[invalid bearer token]" }),
            }
        } else {
            let subject = Identity {
                user: spec["user"].as_str().unwrap_or_default().to_owned(),
                groups: spec["groups"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|g| Some(g.as_str()?.to_owned()))
                    .collect(),
            };
            let subject = if kind == "SelfSubjectAccessReview" { identity } else { &subject };
            let attributes = &spec["resourceAttributes"];
            let text = |name: &str| attributes[name].as_str().unwrap_or_default();
            let resource = match text("subresource") {
                "" => text("resource").to_owned(),
                subresource => format!("{}/{subresource}", text("resource")),
            };
            let requested = RequestAttributes {
                verb: text("verb"),
                group: text("group"),
                resource,
                namespace: text("namespace"),
                name: text("name"),
            };
            json!({ "allowed": self.allows(subject, &requested) })
        };
        review["status"] = status;
        Ok(review)
    }
}
