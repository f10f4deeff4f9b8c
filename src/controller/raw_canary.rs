//! A Canary as the API server tells of it. Most of what is told of Canaries is
//! what Serin has just written: so it is read no further than it takes to see
//! that, and its books of who wrote which field not at all. And one that cannot
//! be read must not keep others from being read.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::table::Held;
use crate::{api::Canary, lean};

#[derive(Clone, Debug, Deserialize)]
pub struct Told {
    #[serde(default, deserialize_with = "lean::metadata")]
    metadata: ObjectMeta,
    spec: Option<Box<RawValue>>,
    status: Option<Box<RawValue>>,
}

/// A Canary that was read, or the metadata of one that could not be.
#[derive(Clone, Debug)]
pub enum Row {
    Read(Arc<Canary>),
    Unreadable(Box<ObjectMeta>),
}

impl Row {
    pub fn canary(&self) -> Option<&Arc<Canary>> {
        match self {
            Self::Read(canary) => Some(canary),
            Self::Unreadable(_) => None,
        }
    }
}

impl Held for Row {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Read(canary) => &canary.metadata,
            Self::Unreadable(metadata) => metadata,
        }
    }
}

impl Told {
    pub fn read(self) -> Row {
        let Self { metadata, spec, status } = self;
        let parts = read(spec.as_deref()).and_then(|spec| Ok((spec, read(status.as_deref())?)));
        match parts {
            Ok((spec, status)) => Row::Read(Arc::new(Canary { metadata, spec, status })),
            Err(_) => Row::Unreadable(Box::new(metadata)),
        }
    }
}

fn read<T: DeserializeOwned>(text: Option<&RawValue>) -> serde_json::Result<T> {
    serde_json::from_str(text.map_or("null", RawValue::get))
}

impl Resource for Told {
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
