//! Promotion, backup and restore of the primary.

use serde_json::{Value, json};
use serin::workload::{Error, FromCache, Kind, LostPrimary, Workload};

use crate::refusals::{Refusals, denied_by_admission};
use crate::world::{World, deployment, eventually};

const D: Kind = Kind::Deployment;

/// The pod spec of a template, without the revision annotation.
fn pods(object: &Value) -> Value {
    object["spec"]["template"]["spec"].clone()
}

pub async fn a_promotion_copies_exactly_the_analysed_template(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    let selector = world.get(D, "web-primary").await["spec"]["selector"].clone();
    let mut next = deployment("web", "web:2");
    next["spec"]["minReadySeconds"] = 7.into();
    next["spec"]["paused"] = true.into();
    next["spec"]["template"]["metadata"]["annotations"] = json!({ "team": "shop" });
    world.apply(D, "web", next).await;
    let revision = world.promote(&workload).await;

    let primary = world.get(D, "web-primary").await;
    assert_eq!(pods(&primary), pods(&world.get(D, "web").await));
    assert_eq!(primary["spec"]["selector"], selector);
    assert_eq!(primary["spec"]["minReadySeconds"], 7);
    assert_eq!(primary["spec"]["paused"], Value::Null);
    let annotations = json!({ "team": "shop", "serin.dev/revision": revision });
    assert_eq!(primary["spec"]["template"]["metadata"]["annotations"], annotations);
    let observed =
        workload.observe_primary(&world.snapshot(D, "web-primary").await, None).unwrap().expect("a primary");
    assert_eq!(observed.revision, Some(revision));
}

pub async fn a_promotion_refuses_a_changed_target(world: World) {
    world.apply(Kind::ConfigMap, "settings", json!({ "data": { "a": "1" } })).await;
    let mut target = deployment("web", "web:1");
    target["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
        json!([{ "configMapRef": { "name": "settings" } }]);
    world.apply(D, "web", target.clone()).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    let before = world.get(D, "web-primary").await["spec"].clone();
    let backup = world.version(Kind::ConfigMap, "web-primary-before").await;

    target["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2".into();
    world.apply(D, "web", target.clone()).await;
    let analysed = world.revision(&workload).await;
    let refused = async || {
        let error =
            workload.promote(&world.client, &world.cache, &analysed, FromCache::default()).await.unwrap_err();
        assert!(matches!(&error, Error::TargetChanged { expected, .. } if *expected == analysed), "{error}");
        assert!(!error.is_conflict());
        assert_eq!(world.get(D, "web-primary").await["spec"], before);
        assert_eq!(world.version(Kind::ConfigMap, "web-primary-before").await, backup);
    };
    target["spec"]["template"]["spec"]["containers"][0]["image"] = "web:3".into();
    world.apply(D, "web", target.clone()).await;
    refused().await;
    target["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2".into();
    world.apply(D, "web", target).await;
    world.patch(Kind::ConfigMap, "settings", json!({ "data": { "a": "2" } })).await;
    refused().await;
    world.patch(Kind::ConfigMap, "settings", json!({ "data": { "a": "1" } })).await;
    workload.promote(&world.client, &world.cache, &analysed, FromCache::default()).await.unwrap();
}

pub async fn a_promotion_from_a_stale_cache_overwrites_nothing(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let revision = world.revision(&workload).await;
    let (target, primary) = (world.snapshot(D, "web").await, world.snapshot(D, "web-primary").await);
    let applied = "kubectl.kubernetes.io/last-applied-configuration";
    let theirs = json!({ "metadata": { "annotations": { applied: "{}" }, "labels": { "team": "shop" } } });
    world.patch(D, "web-primary", theirs).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 4 } })).await;
    let known = FromCache { target: Some(&target), primary: Some(&primary) };
    workload.promote(&world.client, &world.cache, &revision, known).await.unwrap();
    let promoted = world.get(D, "web-primary").await;
    assert_eq!(pods(&promoted)["containers"][0]["image"], "web:2");
    assert_eq!(promoted["metadata"]["labels"]["team"], "shop");
    assert_eq!(promoted["metadata"]["annotations"][applied], "{}");
    // Fields that the cache strips survive a promotion from the cache.
    world.apply(D, "web", deployment("web", "web:3")).await;
    world.promote(&workload).await;
    assert_eq!(world.get(D, "web-primary").await["metadata"]["annotations"][applied], "{}");
    let behind = FromCache { target: Some(&target), primary: None };
    let error = workload.promote(&world.client, &world.cache, &first, behind).await.unwrap_err();
    assert!(matches!(&error, Error::TargetChanged { .. }), "{error}");
}

pub async fn a_repeated_promotion_keeps_the_backup(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let second = world.revision(&workload).await;
    let (target, primary) = (world.snapshot(D, "web").await, world.snapshot(D, "web-primary").await);
    // At the second promotion the cache does not have the first yet.
    let known = FromCache { target: Some(&target), primary: Some(&primary) };
    workload.promote(&world.client, &world.cache, &second, known).await.unwrap();
    let written = &world.cache.take_responses()[0];
    assert_eq!(
        workload.observe_primary(written, None).unwrap().expect("a primary").revision,
        Some(second.clone())
    );
    assert!(written.same_manifest(&world.snapshot(D, "web-primary").await));
    workload.promote(&world.client, &world.cache, &second, known).await.unwrap();
    assert!(world.cache.take_responses().is_empty());
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(pods(&world.get(D, "web-primary").await)["containers"][0]["image"], "web:1");
}

pub async fn a_promotion_drops_removed_fields(mut world: World) {
    world.options.prefixes = vec!["team.example.com/".to_owned()];
    let mut target = deployment("web", "web:1");
    target["metadata"]["labels"] = json!({ "team.example.com/owner": "shop" });
    target["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{ "name": "DEBUG", "value": "1" }]);
    target["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    world.apply(D, "web", target).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    world.make_primary(&workload).await;
    world.patch(D, "web-primary", json!({ "metadata": { "labels": { "team": "users" } } })).await;

    world.apply(D, "web", deployment("web", "web:1")).await;
    world.promote(&workload).await;
    let primary = world.get(D, "web-primary").await;
    assert_eq!(primary["spec"]["template"]["spec"]["containers"][0]["env"], Value::Null);
    assert_eq!(primary["spec"]["template"]["spec"]["hostNetwork"], Value::Null);
    assert_eq!(primary["metadata"]["labels"], json!({ "app": "web-primary", "team": "users" }));
}

/// The size of a primary of six after a promotion of a canary of this size.
async fn promoted_size(world: &World, target: &str, canary: Value, size: u32) -> Value {
    world.apply(D, target, deployment(target, "web:1")).await;
    let workload = world.workload("Deployment", target, canary).await;
    world.make_primary(&workload).await;
    let primary = format!("{target}-primary");
    world.patch(D, &primary, json!({ "spec": { "replicas": 6 } })).await;
    let mut next = deployment(target, "web:2");
    next["spec"]["replicas"] = size.into();
    world.apply(D, target, next).await;
    world.promote(&workload).await;
    world.get(D, &primary).await["spec"]["replicas"].clone()
}

pub async fn a_promotion_sizes_the_primary_as_the_target(world: World) {
    assert_eq!(promoted_size(&world, "web", json!({}), 4).await, 4);
}

pub async fn steps_and_autoscalers_do_not_change_the_size_of_the_primary(world: World) {
    let steps = json!([{ "weight": 10, "replicas": { "count": 1 } }]);
    let by_steps = json!({ "analysis": { "stepWeight": null, "steps": steps } });
    assert_eq!(promoted_size(&world, "web", by_steps, 1).await, 6);
    let scaler = json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "name": "shop" });
    assert_eq!(promoted_size(&world, "shop", json!({ "autoscalerRef": scaler }), 1).await, 6);
}

pub async fn the_previous_revision_can_be_restored(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    let before = world.get(D, "web-primary").await["spec"].clone();

    let mut next = deployment("web", "web:2");
    next["spec"]["template"]["spec"]["hostNetwork"] = true.into();
    world.apply(D, "web", next).await;
    let second = world.promote(&workload).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 5 } })).await;
    for _ in 0..2 {
        workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
        let primary = world.get(D, "web-primary").await;
        assert_eq!(primary["spec"]["template"], before["template"]);
        assert_eq!(primary["spec"]["replicas"], 5, "the size is not restored");
    }
    // Promoted and restored again.
    workload.promote(&world.client, &world.cache, &second, FromCache::default()).await.unwrap();
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(world.get(D, "web-primary").await["spec"]["template"], before["template"]);
}

pub async fn a_missing_backup_is_reported(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let second = world.promote(&workload).await;
    world.delete(Kind::ConfigMap, "web-primary-before").await;
    let error = workload
        .restore_primary(&world.client, &world.cache, &first, &LostPrimary::default())
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::BackupMissing { revision, .. } if *revision == first), "{error}");
    assert_eq!(
        workload
            .observe_primary(&world.snapshot(D, "web-primary").await, None)
            .unwrap()
            .expect("a primary")
            .revision,
        Some(second)
    );
    // With the revision applied to the target again it can be restored.
    world.apply(D, "web", deployment("web", "web:1")).await;
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    let observed =
        workload.observe_primary(&world.snapshot(D, "web-primary").await, None).unwrap().expect("a primary");
    assert_eq!(observed.revision, Some(first));
}

/// By somebody who may write ConfigMaps and no workloads.
pub async fn an_edited_backup_is_not_restored(world: World) {
    const BACKUP: &str = "web-primary-before";
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let second = world.promote(&workload).await;
    world.apply(D, "web", deployment("web", "web:3")).await;
    let recorded = world.get(Kind::ConfigMap, BACKUP).await["data"].clone();
    let edited = |key: &str| {
        let spec = recorded[key].as_str().expect("a spec").replace("web:", "evil:");
        json!({ "data": { key: spec } })
    };
    let image = async || pods(&world.get(D, "web-primary").await)["containers"][0]["image"].clone();

    world.patch(Kind::ConfigMap, BACKUP, edited("spec")).await;
    let lost = LostPrimary::default();
    let error = workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot restore revision {first} of the primary: its backup {BACKUP} was edited since it was written; apply that version to the target again"
        )
    );
    assert!(error.is_final());
    assert_eq!(image().await, "web:2");
    world.apply(D, "web", deployment("web", "web:1")).await;
    workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap();
    assert_eq!(image().await, "web:1", "from the target");
    world.apply(D, "web", deployment("web", "web:2")).await;
    assert_eq!(world.promote(&workload).await, second);
    world.apply(D, "web", deployment("web", "web:3")).await;

    // A primary of a version that recorded no digests.
    let legacy = json!({ "metadata": { "annotations": { "serin.dev/backup-digests": null } } });
    world.patch(D, "web-primary", legacy).await;
    workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap();
    assert_eq!(image().await, "web:1");
}

/// The status outlives the primary.
pub async fn a_deleted_primary_is_not_created_from_an_edited_backup(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    let snapshot = world.snapshot(D, "web-primary").await;
    let backup = world.get(Kind::ConfigMap, "web-primary-before").await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let spec = backup["data"]["promotedSpec"].as_str().expect("a spec").to_owned();
    let edit = json!({ "data": { "promotedSpec": spec.replace("web:1", "evil:1") } });
    world.patch(Kind::ConfigMap, "web-primary-before", edit).await;
    world.delete(D, "web-primary").await;
    eventually("it is deleted", async || !world.exists(D, "web-primary").await).await;
    let lost = LostPrimary { replicas: None, backup_digests: snapshot.backup_digests() };
    let error = workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap_err();
    assert!(matches!(error, Error::BackupEdited { .. }), "{error}");
    assert!(!world.exists(D, "web-primary").await);
    world.patch(Kind::ConfigMap, "web-primary-before", json!({ "data": { "promotedSpec": spec } })).await;
    workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap();
    let restored = world.snapshot(D, "web-primary").await;
    assert_eq!(restored.backup_digests(), snapshot.backup_digests());

    // An edit of the other spec is none that was recorded either.
    let second = world.promote(&workload).await;
    world.apply(D, "web", deployment("web", "web:3")).await;
    let promoted = world.snapshot(D, "web-primary").await;
    let edit = json!({ "data": { "spec": spec.replace("web:1", "evil:1") } });
    world.patch(Kind::ConfigMap, "web-primary-before", edit).await;
    delete_primary(&world).await;
    let lost = LostPrimary { replicas: None, backup_digests: promoted.backup_digests() };
    workload.restore_primary(&world.client, &world.cache, &second, &lost).await.unwrap();
    let error = workload.restore_primary(&world.client, &world.cache, &first, &lost).await.unwrap_err();
    assert!(matches!(error, Error::BackupEdited { .. }), "{error}");
}

async fn delete_primary(world: &World) {
    world.delete(D, "web-primary").await;
    eventually("it is deleted", async || !world.exists(D, "web-primary").await).await;
}

/// A target at web:2, and a primary at web:1 that somebody has scaled, so that its spec is
/// not the one in its backup; with their revisions.
async fn scaled_and_pushed(world: &World) -> (Workload, [String; 2]) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 5 } })).await;
    world.apply(D, "web", deployment("web", "web:2")).await;
    let second = world.revision(&workload).await;
    (workload, [first, second])
}

/// Deletes the primary and restores it, when the target has neither revision any more.
async fn restore_deleted(world: &World, workload: &Workload, revision: &str) {
    let primary = world.snapshot(D, "web-primary").await;
    delete_primary(world).await;
    world.apply(D, "web", deployment("web", "web:3")).await;
    let lost = LostPrimary { replicas: Some(5), backup_digests: primary.backup_digests() };
    workload.restore_primary(&world.client, &world.cache, revision, &lost).await.unwrap();
    let restored = world.get(D, "web-primary").await;
    assert_eq!(pods(&restored)["containers"][0]["image"], "web:1");
    assert_eq!(restored["spec"]["replicas"], 5);
}

pub async fn a_refused_promotion_leaves_a_backup_that_can_be_restored(world: World) {
    let (workload, [first, second]) = scaled_and_pushed(&world).await;
    let refusals = Refusals::default();
    refusals.add(denied_by_admission("PATCH", "/deployments/web-primary", "not now"));
    let refused = refusals.client(world.client.clone());
    for _ in 0..2 {
        let promoted = workload.promote(&refused, &world.cache, &second, FromCache::default()).await;
        assert!(matches!(promoted, Err(Error::Api { .. })), "{promoted:?}");
    }
    let backup = world.get(Kind::ConfigMap, "web-primary-before").await["data"].clone();
    assert_eq!((&backup["revision"], &backup["promotedRevision"]), (&json!(first), &json!(second)));
    restore_deleted(&world, &workload, &first).await;
}

pub async fn a_promotion_without_a_backup_to_keep_records_the_new_one_first(world: World) {
    let (workload, [first, second]) = scaled_and_pushed(&world).await;
    world.delete(Kind::ConfigMap, "web-primary-before").await;
    let refusals = Refusals::default();
    let refused = refusals.client(world.client.clone());
    // The primary is written before the backup, and after it.
    for path in ["/configmaps/web-primary-before", "/deployments/web-primary"] {
        refusals.clear();
        refusals.add(denied_by_admission("PATCH", path, "not now"));
        let promoted = workload.promote(&refused, &world.cache, &second, FromCache::default()).await;
        assert!(matches!(promoted, Err(Error::Api { .. })), "{promoted:?}");
    }
    assert!(world.exists(Kind::ConfigMap, "web-primary-before").await);
    restore_deleted(&world, &workload, &first).await;
}

pub async fn a_deleted_primary_is_created_again_from_its_backup(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    let created = world.get(D, "web-primary").await["spec"].clone();
    world.apply(D, "web", deployment("web", "web:2")).await;
    let restore = async |revision: &str, replicas| {
        let lost = LostPrimary { replicas, ..LostPrimary::default() };
        world.delete(D, "web-primary").await;
        eventually("it is deleted", async || !world.exists(D, "web-primary").await).await;
        for _ in 0..2 {
            workload.restore_primary(&world.client, &world.cache, revision, &lost).await.unwrap();
        }
        let primary = world.get(D, "web-primary").await;
        let snapshot = world.snapshot(D, "web-primary").await;
        assert_eq!(
            workload.observe_primary(&snapshot, None).unwrap().expect("a primary").revision.as_deref(),
            Some(revision)
        );
        assert_eq!(primary["metadata"]["labels"], json!({ "app": "web-primary" }));
        primary["spec"].clone()
    };
    assert_eq!(restore(&first, None).await, created, "never promoted");
    assert_eq!(restore(&first, Some(5)).await["replicas"], 5);
    let second = world.promote(&workload).await;
    world.apply(D, "web", deployment("web", "web:3")).await;
    assert_eq!(restore(&second, Some(0)).await["replicas"], 1);
    assert_eq!(pods(&world.get(D, "web-primary").await)["containers"][0]["image"], "web:2");
    // The revision before can still be restored.
    workload.restore_primary(&world.client, &world.cache, &first, &LostPrimary::default()).await.unwrap();
    assert_eq!(pods(&world.get(D, "web-primary").await)["containers"][0]["image"], "web:1");

    // Without a backup the target has it, or nobody.
    world.delete(Kind::ConfigMap, "web-primary-before").await;
    let third = world.revision(&workload).await;
    assert_eq!(restore(&third, Some(4)).await["replicas"], 4);
    world.delete(D, "web-primary").await;
    eventually("it is deleted", async || !world.exists(D, "web-primary").await).await;
    let error = workload
        .restore_primary(&world.client, &world.cache, &first, &LostPrimary::default())
        .await
        .unwrap_err();
    assert!(matches!(&error, Error::BackupMissing { revision, .. } if *revision == first), "{error}");
}

pub async fn the_previous_version_runs_beside_the_primary(world: World) {
    world.apply(D, "web", deployment("web", "web:1")).await;
    let workload = world.workload("Deployment", "web", json!({})).await;
    let first = world.make_primary(&workload).await;
    world.patch(D, "web-primary", json!({ "spec": { "replicas": 3 } })).await;
    let error = workload.keep_previous(&world.client, "v1-another").await.unwrap_err();
    assert!(matches!(error, Error::PrimaryChanged { .. }), "{error}");
    assert!(!world.exists(D, "web-previous").await);

    for _ in 0..2 {
        workload.keep_previous(&world.client, &first).await.unwrap();
    }
    world.apply(D, "web", deployment("web", "web:2")).await;
    let second = world.promote(&workload).await;
    let previous = world.get(D, "web-previous").await;
    assert_eq!(previous["spec"]["selector"]["matchLabels"], json!({ "app": "web-previous" }));
    assert_eq!(previous["spec"]["template"]["metadata"]["labels"], json!({ "app": "web-previous" }));
    assert_eq!(previous["spec"]["replicas"], 3);
    assert_eq!(pods(&previous)["containers"][0]["image"], "web:1");
    let observed = workload.observe_previous(&world.snapshot(D, "web-previous").await).unwrap();
    assert_eq!((observed.revision.as_str(), observed.pods.desired), (first.as_str(), 3));

    workload.keep_previous(&world.client, &second).await.unwrap();
    assert_eq!(pods(&world.get(D, "web-previous").await)["containers"][0]["image"], "web:2");
    workload.drop_previous(&world.client).await.unwrap();
    assert!(!world.exists(D, "web-previous").await);
}
