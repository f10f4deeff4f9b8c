//! Claims of owners on children: an owner keeps selected children that name it,
//! adopts selected orphans, and releases children it no longer selects.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{Selector, SelectorExt};
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::runtime::{
    Attempt, Error, controller_of, controller_reference, ignore_not_found, is_controlled_by,
};

/// An owner's action for one child.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    Keep,
    Adopt,
    Release,
    NotMine,
}

pub fn claim<C: Resource>(
    child: &C,
    owner_uid: Option<&str>,
    owner_is_deleting: bool,
    selector: &Selector,
) -> Claim {
    let meta = child.meta();
    let selected = !selector.selects_all() && selector.matches(child.labels());
    match controller_of(meta) {
        Some(_) if is_controlled_by(meta, owner_uid) => {
            if selected || owner_is_deleting {
                Claim::Keep
            } else {
                Claim::Release
            }
        }
        Some(_) => Claim::NotMine,
        None if selected && !owner_is_deleting && meta.deletion_timestamp.is_none() => Claim::Adopt,
        None => Claim::NotMine,
    }
}

/// The owner's children on the server, after adopting and releasing. `cache` only
/// serves to find children whose labels no longer match.
pub async fn children_of<K, C>(
    client: &Client,
    owner: &K,
    selector: &Selector,
    cache: &Store<C>,
) -> Result<Vec<C>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    C: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let namespace = owner.namespace().unwrap_or_default();
    let uid = owner.uid();
    let going = owner.meta().deletion_timestamp.is_some();
    let api: Api<C> = Api::namespaced(client.clone(), &namespace);

    let strayed = cache.state_filter(|child| {
        child.namespace().as_deref() == Some(namespace.as_str())
            && claim(child, uid.as_deref(), going, selector) == Claim::Release
    });
    for child in strayed {
        let rest = owners_without(&*child, uid.as_deref());
        ignore_not_found(set_owners(&api, &*child, rest).await).trying_to("release a child")?;
    }

    let mut children = Vec::new();
    let mut may_adopt = None;
    for child in
        api.list(&ListParams::default().labels_from(selector)).await.trying_to("list its children")?.items
    {
        match claim(&child, uid.as_deref(), going, selector) {
            Claim::Keep => children.push(child),
            Claim::Adopt => {
                // The cache may not show yet that the owner is gone.
                let may = match may_adopt {
                    Some(may) => may,
                    None => *may_adopt.insert(exists_and_is_not_deleting(client, owner).await?),
                };
                if may {
                    let mut owners = child.owner_references().to_vec();
                    owners.push(controller_reference(owner));
                    children.extend(
                        ignore_not_found(set_owners(&api, &child, owners).await)
                            .trying_to("adopt a child")?,
                    );
                }
            }
            Claim::Release | Claim::NotMine => {}
        }
    }
    Ok(children)
}

async fn exists_and_is_not_deleting<K>(client: &Client, owner: &K) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let found = api.get_opt(&owner.name_any()).await.trying_to("verify the owner")?;
    Ok(found.is_some_and(|found| found.uid() == owner.uid() && found.meta().deletion_timestamp.is_none()))
}

fn owners_without<C: Resource>(child: &C, uid: Option<&str>) -> Vec<OwnerReference> {
    child.owner_references().iter().filter(|owner| Some(owner.uid.as_str()) != uid).cloned().collect()
}

async fn set_owners<C>(api: &Api<C>, child: &C, owners: Vec<OwnerReference>) -> kube::Result<C>
where
    C: Resource + Clone + DeserializeOwned + Debug,
{
    let patch = json!({"metadata": {
        "uid": child.uid(),
        "resourceVersion": child.resource_version(),
        "ownerReferences": (!owners.is_empty()).then_some(owners),
    }});
    api.patch(&child.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(app: &str, owner: Option<&str>) -> Pod {
        let owners = owner.map(|uid| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": uid, "controller": true}]));
        serde_json::from_value(json!({"metadata": {"labels": {"app": app}, "ownerReferences": owners}}))
            .unwrap()
    }

    fn ours(pod: &Pod, going: bool) -> Claim {
        claim(pod, Some("me"), going, &Selector::from_iter([("app", "a")]))
    }

    #[test]
    fn an_owned_and_selected_child_is_kept() {
        assert_eq!(ours(&pod("a", Some("me")), false), Claim::Keep);
    }

    #[test]
    fn a_child_whose_labels_changed_is_released() {
        assert_eq!(ours(&pod("b", Some("me")), false), Claim::Release);
    }

    #[test]
    fn an_orphan_is_adopted_unless_the_owner_is_being_deleted() {
        assert_eq!(ours(&pod("a", None), false), Claim::Adopt);
        assert_eq!(ours(&pod("a", None), true), Claim::NotMine);
    }

    #[test]
    fn an_object_owned_by_another_is_left_alone() {
        assert_eq!(ours(&pod("a", Some("you")), false), Claim::NotMine);
    }

    #[test]
    fn a_selector_that_selects_everything_claims_nothing() {
        assert_eq!(claim(&pod("a", None), Some("me"), false, &Selector::default()), Claim::NotMine);
    }
}
