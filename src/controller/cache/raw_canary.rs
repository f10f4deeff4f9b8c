//! Canaries as watch events deliver them. Most events are for the controller's
//! own status writes, so spec and status stay text until the store turns out to
//! be older; managedFields are skipped. A Canary that cannot be decoded must not
//! keep others from being decoded.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{api::Canary, controller::queue::trigger::HasMeta, stripped};

#[derive(Clone, Debug, Deserialize)]
pub struct RawCanary {
    #[serde(default, deserialize_with = "stripped::strip_metadata")]
    metadata: ObjectMeta,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

/// A decoded Canary, or the metadata of one that does not decode.
#[derive(Clone, Debug)]
pub enum CachedCanary {
    Valid(Arc<Canary>),
    Invalid(Box<ObjectMeta>),
}

impl CachedCanary {
    pub fn canary(&self) -> Option<&Arc<Canary>> {
        match self {
            Self::Valid(canary) => Some(canary),
            Self::Invalid(_) => None,
        }
    }
}

impl HasMeta for CachedCanary {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Valid(canary) => &canary.metadata,
            Self::Invalid(metadata) => metadata,
        }
    }
}

impl RawCanary {
    pub fn decode(self) -> CachedCanary {
        let Self { metadata, spec, status } = self;
        let parts = decode_part(spec.as_deref()).and_then(|spec| Ok((spec, decode_part(status.as_deref())?)));
        match parts {
            Ok((spec, status)) => CachedCanary::Valid(Arc::new(Canary { metadata, spec, status })),
            Err(_) => CachedCanary::Invalid(Box::new(metadata)),
        }
    }
}

fn decode_part<T: DeserializeOwned>(text: Option<&RawValue>) -> serde_json::Result<T> {
    serde_json::from_str(text.map_or("null", RawValue::get))
}

impl Resource for RawCanary {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Canary::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Canary::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Canary::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Canary::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
