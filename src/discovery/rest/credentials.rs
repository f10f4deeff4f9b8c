//! Secrets of MeshApis → credentials.
//!
//! A Secret is read only with the label that fits the MeshApi. A kubeconfig may contain
//! no commands and no paths: both would be of the controller's container, not of the
//! person who wrote it. No credential appears in a message.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::config::{Kubeconfig, NamedAuthInfo, NamedCluster};

use crate::api::MeshApiSpec;
use crate::api::mesh_api::{CREDENTIALS_LABEL, KUBERNETES_CREDENTIALS, REST_API_CREDENTIALS};

/// Of AWS. Either keys or a role that the controller's own credentials assume, or both.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AwsCredentials {
    /// Access key ID, secret access key, session token.
    pub keys: Option<(String, String, Option<String>)>,
    pub role_arn: Option<String>,
    pub external_id: Option<String>,
}

#[derive(Clone)]
pub enum Credentials {
    /// The controller's own for AWS, no token for Consul.
    None,
    Aws(AwsCredentials),
    Token(String),
    Kubeconfig(Box<Kubeconfig>),
}

/// Why a Secret cannot be used; names keys, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error(
        "the Secret {0} does not exist in this namespace, or lacks the label {CREDENTIALS_LABEL}: kubernetes or rest-api"
    )]
    Missing(String),
    #[error("the Secret {name} needs the label {CREDENTIALS_LABEL}: {wanted}, and has {found}")]
    Label { name: String, wanted: &'static str, found: String },
    #[error("the Secret {name} has no key '{key}'")]
    NoKey { name: String, key: &'static str },
    #[error("the key '{key}' of the Secret {name} is not text")]
    NotText { name: String, key: &'static str },
    #[error(
        "the Secret {name} has a role and no keys: with spec.appMesh.endpoint the controller's own credentials would be sent there; add accessKeyId and secretAccessKey, or leave the endpoint out"
    )]
    OwnElsewhere { name: String },
    #[error("the kubeconfig of the Secret {name} cannot be read")]
    NoKubeconfig { name: String },
    #[error(
        "the kubeconfig of the Secret {name} has {field}: put the token or the certificates into it (`kubectl config view --raw --flatten`)"
    )]
    Outside { name: String, field: &'static str },
}

/// `secret` is the one that the spec names, if it exists.
pub fn credentials(spec: &MeshApiSpec, secret: Option<&Secret>) -> Result<Credentials, CredentialsError> {
    let Some(reference) = &spec.secret_ref else { return Ok(Credentials::None) };
    let name = reference.name.clone();
    let Some(secret) = secret else { return Err(CredentialsError::Missing(name)) };
    let wanted = match spec.kubernetes {
        Some(_) => KUBERNETES_CREDENTIALS,
        None => REST_API_CREDENTIALS,
    };
    let label = secret.metadata.labels.as_ref().and_then(|labels| labels.get(CREDENTIALS_LABEL));
    if label.is_none_or(|label| label != wanted) {
        let found = label.map_or_else(|| "none".to_owned(), Clone::clone);
        return Err(CredentialsError::Label { name, wanted, found });
    }
    let data = SecretData {
        name,
        data: secret.data.iter().flatten().map(|(k, v)| (k.as_str(), &v.0[..])).collect(),
    };
    if spec.kubernetes.is_some() {
        return data.kubeconfig();
    }
    match spec.consul {
        Some(_) => Ok(Credentials::Token(data.required("token")?)),
        None => {
            let aws = data.aws()?;
            let elsewhere = spec.app_mesh.as_ref().is_some_and(|api| api.endpoint.is_some());
            match aws.keys {
                None if elsewhere => Err(CredentialsError::OwnElsewhere { name: data.name }),
                _ => Ok(Credentials::Aws(aws)),
            }
        }
    }
}

struct SecretData<'s> {
    name: String,
    data: BTreeMap<&'s str, &'s [u8]>,
}

impl SecretData<'_> {
    /// Without the newline that an editor or `echo` adds.
    fn optional(&self, key: &'static str) -> Result<Option<String>, CredentialsError> {
        let Some(bytes) = self.data.get(key) else { return Ok(None) };
        let text = std::str::from_utf8(bytes)
            .map_err(|_| CredentialsError::NotText { name: self.name.clone(), key })?;
        Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    fn required(&self, key: &'static str) -> Result<String, CredentialsError> {
        self.optional(key)?.ok_or_else(|| CredentialsError::NoKey { name: self.name.clone(), key })
    }

    fn aws(&self) -> Result<AwsCredentials, CredentialsError> {
        let role_arn = self.optional("roleArn")?;
        let external_id = self.optional("externalId")?;
        let keys = match (self.optional("accessKeyId")?, &role_arn) {
            (None, Some(_)) => None,
            (None, None) => {
                return Err(CredentialsError::NoKey { name: self.name.clone(), key: "accessKeyId" });
            }
            (Some(id), _) => Some((id, self.required("secretAccessKey")?, self.optional("sessionToken")?)),
        };
        Ok(AwsCredentials { keys, role_arn, external_id })
    }

    fn kubeconfig(&self) -> Result<Credentials, CredentialsError> {
        let text = self.required("kubeconfig")?;
        // The error of the parser quotes the text.
        let kubeconfig = Kubeconfig::from_yaml(&text)
            .map_err(|_| CredentialsError::NoKubeconfig { name: self.name.clone() })?;
        let users = kubeconfig.auth_infos.iter().filter_map(outside_of_user);
        let clusters = kubeconfig.clusters.iter().filter_map(outside_of_cluster);
        match users.chain(clusters).next() {
            Some(field) => Err(CredentialsError::Outside { name: self.name.clone(), field }),
            None => Ok(Credentials::Kubeconfig(Box::new(kubeconfig))),
        }
    }
}

fn outside_of_user(user: &NamedAuthInfo) -> Option<&'static str> {
    let user = user.auth_info.as_ref()?;
    [
        (user.exec.is_some(), "a command (exec)"),
        (user.auth_provider.is_some(), "an auth-provider"),
        (user.token_file.is_some(), "a path (tokenFile)"),
        (user.client_certificate.is_some(), "a path (client-certificate)"),
        (user.client_key.is_some(), "a path (client-key)"),
    ]
    .into_iter()
    .find_map(|(has, field)| has.then_some(field))
}

fn outside_of_cluster(cluster: &NamedCluster) -> Option<&'static str> {
    let cluster = cluster.cluster.as_ref()?;
    [
        (cluster.certificate_authority.is_some(), "a path (certificate-authority)"),
        (cluster.proxy_url.is_some(), "a proxy-url, which is not supported"),
    ]
    .into_iter()
    .find_map(|(has, field)| has.then_some(field))
}
