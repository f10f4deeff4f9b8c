//! The custom resource definitions on API servers.
//!
//! Laws about manifests run twice, on the real kube-apiserver and
//! on `local/`: `cargo test --test crds real::`, or `local::`.

#[path = "../support/mod.rs"]
mod support;

mod definitions;
mod flagger;
mod manifests;

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams, TypeMeta};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

/// Makes one test of each law on each server.
macro_rules! laws {
    ($($area:ident::$law:ident)*) => {
        mod real {
            $(#[tokio::test]
            async fn $law() {
                let client = crate::support::real().await.client().await;
                crate::$area::$law(&crate::Server::with_definitions(client).await).await
            })*
        }

        mod local {
            $(#[tokio::test]
            async fn $law() {
                let client = kube_local::ApiServer::new(Default::default()).client();
                crate::$area::$law(&crate::Server::with_definitions(client).await).await
            })*
        }
    };
}

laws! {
    manifests::invalid_manifests_are_refused_with_a_message
    manifests::valid_manifests_are_kept_as_written
    manifests::an_explicit_null_equals_an_absent_field
    manifests::alternative_notations_are_equivalent
    flagger::every_example_is_accepted_and_kept
}

/// A server that knows the definitions.
struct Server {
    client: Client,
}

impl Server {
    async fn with_definitions(client: Client) -> Server {
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        for crd in serin::api::crds() {
            let name = crd.name_any();
            definitions
                .patch(&name, &PatchParams::apply("serin-tests").force(), &Patch::Apply(&crd))
                .await
                .unwrap_or_else(|error| panic!("install {name}: {error}"));
        }
        let server = Server { client };
        for crd in serin::api::crds() {
            server.await_served(&crd.spec.names.kind).await;
        }
        server
    }

    /// The object that the server would store, or its error message.
    async fn try_create(&self, manifest: &Value) -> Result<Value, String> {
        let object: DynamicObject =
            serde_json::from_value(manifest.clone()).map_err(|error| error.to_string())?;
        let dry_run = PostParams { dry_run: true, ..Default::default() };
        match self.kind(&object.types.clone().unwrap_or_default()).create(&dry_run, &object).await {
            Ok(stored) => Ok(serde_json::to_value(stored).expect("an object is JSON")),
            Err(kube::Error::Api(status)) if status.reason == "Invalid" => Err(status.message.clone()),
            Err(error) => panic!("neither accepted nor refused: {error}\n{manifest:#}"),
        }
    }

    fn kind(&self, types: &TypeMeta) -> Api<DynamicObject> {
        let kind = GroupVersionKind::try_from(types).expect("a manifest has an apiVersion");
        let resource = ApiResource::from_gvk(&kind);
        if ["ClusterAnalysisTemplate", "Mesh"].contains(&types.kind.as_str()) {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), "default", &resource)
        }
    }

    /// A definition is served some moments after it was accepted.
    async fn await_served(&self, kind: &str) {
        let types = TypeMeta { api_version: "serin.dev/v1alpha1".to_owned(), kind: kind.to_owned() };
        let objects = self.kind(&types);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while let Err(error) = objects.list(&Default::default()).await {
            assert!(tokio::time::Instant::now() < deadline, "{kind} is not served: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The same value however it is written: 99 and 99.0 are one number, and a
/// switch that is off is one that is not there.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| **value != Value::Bool(false))
            .map(|(name, value)| (name.clone(), normal(value)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// Through our own types and back.
fn through_our_types(object: &Value) -> Value {
    use serin::api::{
        AlertProvider, AnalysisTemplate, Canary, ClusterAnalysisTemplate, EndpointGroup, MeshApi, MeshRoute,
    };
    fn through<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value) -> Value {
        let typed: T = serde_json::from_value(object.clone())
            .unwrap_or_else(|error| panic!("the server took what we cannot read: {error}\n{object:#}"));
        serde_json::to_value(typed).expect("our types are JSON")
    }
    match object["kind"].as_str() {
        Some("Canary") => through::<Canary>(object),
        Some("AnalysisTemplate") => through::<AnalysisTemplate>(object),
        Some("ClusterAnalysisTemplate") => through::<ClusterAnalysisTemplate>(object),
        Some("AlertProvider") => through::<AlertProvider>(object),
        Some("MeshApi") => through::<MeshApi>(object),
        Some("MeshRoute") => through::<MeshRoute>(object),
        Some("EndpointGroup") => through::<EndpointGroup>(object),
        other => panic!("not one of our kinds: {other:?}"),
    }
}
