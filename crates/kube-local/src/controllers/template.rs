//! Comparison and hash of pod templates.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// The label with the hash of a pod's template.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// A hash that is part of names, so stable across processes and versions of this
/// program. `collisions` changes it after a name collision.
pub fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let mut digest = Fnv::new();
    // Maps are sorted and fields are in declaration order: equal templates
    // have equal text.
    digest.add(serde_json::to_string(template).unwrap_or_default().as_bytes());
    if let Some(collisions) = collisions {
        digest.add(&collisions.to_le_bytes());
    }
    safe_letters(digest.0)
}

pub fn same_but_for_hash(one: &PodTemplateSpec, other: &PodTemplateSpec) -> bool {
    without_hash(one) == without_hash(other)
}

fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(meta) = template.metadata.as_mut() {
        if let Some(labels) = meta.labels.as_mut() {
            labels.remove(POD_TEMPLATE_HASH);
        }
        // The server drops empty maps, and some clients send a null creationTimestamp.
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
        meta.annotations = meta.annotations.take().filter(|annotations| !annotations.is_empty());
        meta.creation_timestamp = None;
    }
    template.metadata = Some(template.metadata.unwrap_or_default());
    template
}

/// FNV-1a, 32 bits.
struct Fnv(u32);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0x811c_9dc5)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// Decimal digits as letters that spell no words and fit in a DNS name.
fn safe_letters(number: u32) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    number.to_string().bytes().map(|digit| LETTERS[usize::from(digit) % LETTERS.len()] as char).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({
            "metadata": {"labels": {"app": "podinfo", "b": "1"}},
            "spec": {"containers": [{"name": "app", "image": image}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_hash_is_the_same_in_every_version_of_this_program() {
        assert_eq!(hash(&template("app:v1"), None), "5c94df97d8");
    }

    #[test]
    fn a_different_template_or_collision_count_changes_the_hash() {
        let first = hash(&template("app:v1"), None);
        assert_ne!(first, hash(&template("app:v2"), None));
        assert_ne!(first, hash(&template("app:v1"), Some(1)));
        assert_ne!(hash(&template("app:v1"), Some(1)), hash(&template("app:v1"), Some(2)));
    }

    #[test]
    fn the_hash_label_does_not_change_the_hash() {
        let mut labelled = template("app:v1");
        labelled
            .metadata
            .get_or_insert_default()
            .labels
            .get_or_insert_default()
            .insert(POD_TEMPLATE_HASH.to_owned(), "abc".to_owned());
        assert!(same_but_for_hash(&labelled, &template("app:v1")));
        assert!(!same_but_for_hash(&labelled, &template("app:v2")));
    }
}
