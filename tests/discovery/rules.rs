//! Each row of the rule table, on the least that proves it.

use serin::discovery::model::{MeshKind, Mode, RULES, Role, Strength};

use super::{answer, inventory, web, workload};

#[test]
fn every_rule_names_its_upstream_source() {
    assert!(RULES.iter().all(|rule| !rule.sources.is_empty()));
}

#[test]
fn a_bare_cluster_has_no_mesh() {
    let inventory = inventory(&web("", "", "containers: [{name: web}, {name: envoy}]"));
    assert_eq!(inventory.meshes(), []);
    let web = workload(&inventory, "web");
    assert_eq!((web.meshes.len(), web.facts.len()), (0, 0), "a container called envoy proves nothing");
    assert!(answer(web, "kubernetes").yes);
    assert_eq!(
        answer(web, "istio").why.as_deref(),
        Some("the cluster does not serve VirtualService (networking.istio.io)")
    );
}

#[test]
fn a_pod_proves_its_mesh_and_mode() {
    let status = r#"sidecar.istio.io/status: '{"revision":"1-29"}'"#;
    let native =
        "initContainers: [{name: istio-proxy, restartPolicy: Always, image: 'istio/proxyv2:1.29.1'}]";
    for (annotations, labels, spec, mesh, mode) in [
        (status, "", "", MeshKind::Istio, Mode::Sidecar),
        ("", "", "containers: [{name: istio-proxy}]", MeshKind::Istio, Mode::Sidecar),
        (status, "", native, MeshKind::Istio, Mode::NativeSidecar),
        ("ambient.istio.io/redirection: enabled", "", "", MeshKind::Istio, Mode::Ambient),
        ("linkerd.io/proxy-version: v2", "", "", MeshKind::Linkerd, Mode::Sidecar),
        (
            "",
            "",
            "initContainers: [{name: linkerd-proxy, restartPolicy: Always}]",
            MeshKind::Linkerd,
            Mode::NativeSidecar,
        ),
        ("kuma.io/sidecar-injected: 'true'", "", "", MeshKind::Kuma, Mode::Sidecar),
        ("consul.hashicorp.com/connect-inject-status: injected", "", "", MeshKind::Consul, Mode::Sidecar),
        (
            "",
            "",
            "containers: [{name: envoy, env: [{name: APPMESH_VIRTUAL_NODE_NAME}]}]",
            MeshKind::AppMesh,
            Mode::Sidecar,
        ),
        ("", "osm-proxy-uuid: '1'", "containers: [{name: envoy}]", MeshKind::Osm, Mode::Sidecar),
    ] {
        let inventory = inventory(&web(annotations, labels, spec));
        let web = workload(&inventory, "web");
        let member = web.mesh().unwrap_or_else(|| panic!("{mesh:?}: {:?}", web.meshes));
        assert_eq!((member.mesh, member.mode, member.strength), (mesh, Some(mode), Strength::Participating));
        assert!(web.facts.iter().all(|fact| fact.evidence.object.name == "web-abc-1"), "{:?}", web.facts);
    }
}

#[test]
fn an_init_container_without_restart_policy_proves_nothing() {
    let inventory = inventory(&web("", "", "initContainers: [{name: istio-proxy}]"));
    assert!(workload(&inventory, "web").meshes.is_empty());
}

#[test]
fn a_namespace_enables_a_mesh() {
    for (labels, annotations, mesh) in [
        ("istio-injection: enabled", "", Some(MeshKind::Istio)),
        ("istio.io/rev: stable", "", Some(MeshKind::Istio)),
        ("istio.io/dataplane-mode: ambient", "", Some(MeshKind::Istio)),
        ("istio-injection: disabled", "", None),
        ("", "linkerd.io/inject: enabled", Some(MeshKind::Linkerd)),
        ("kuma.io/sidecar-injection: 'true'", "", Some(MeshKind::Kuma)),
        ("appmesh.k8s.aws/sidecarInjectorWebhook: enabled", "", Some(MeshKind::AppMesh)),
        ("openservicemesh.io/monitored-by: osm", "", Some(MeshKind::Osm)),
    ] {
        let namespace = format!(
            "kind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}, annotations: {{{annotations}}}}}\n---\n"
        );
        let inventory = inventory(&(namespace + &web("", "", "")));
        let web = workload(&inventory, "web");
        assert_eq!(
            web.mesh().map(|member| (member.mesh, member.strength)),
            mesh.map(|mesh| (mesh, Strength::Enabled))
        );
    }
}

#[test]
fn a_workload_refuses_for_itself() {
    let yaml = "
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {sidecar.istio.io/inject: 'false'}}}}
";
    assert!(workload(&inventory(yaml), "web").meshes.is_empty());
}

const ISTIOD: &str = "
kind: Deployment
metadata: {name: istiod-1-29, namespace: istio-system, labels: {app: istiod, istio.io/rev: 1-29}}
spec: {replicas: 2, template: {spec: {containers: [{name: discovery, image: 'istio/pilot:1.29.1'}]}}}
status: {readyReplicas: 1}
---
kind: ConfigMap
metadata: {name: istio-1-29, namespace: istio-system}
data: {mesh: 'trustDomain: shop.example'}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: tag, labels: {istio.io/tag: stable, istio.io/rev: 1-29}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
kind: Served
metadata: {name: virtualservices.networking.istio.io}
---
kind: Served
metadata: {name: httproutes.gateway.networking.k8s.io}
---
";

#[test]
fn a_mesh_joins_control_plane_tags_settings_and_members() {
    let namespace = "kind: Namespace\nmetadata: {name: shop, labels: {istio.io/rev: stable}}\n---\n";
    let sidecar = web(
        r#"sidecar.istio.io/status: '{"revision":"1-29"}'"#,
        "",
        "containers: [{name: istio-proxy, image: 'istio/proxyv2:1.28.0'}]",
    );
    let inventory = inventory(&format!("{ISTIOD}{namespace}{sidecar}"));
    let [mesh] = &inventory.meshes()[..] else { panic!("{:?}", inventory.meshes()) };
    let plane = mesh.control_plane.as_ref().expect("a control plane");
    assert_eq!(mesh.name, "istio-1-29");
    assert_eq!((plane.version.as_deref(), &plane.tags[..]), (Some("1.29.1"), &["stable".to_owned()][..]));
    assert_eq!((plane.ready, plane.desired), (1, 2));
    assert_eq!((mesh.mtls.as_deref(), mesh.trust_domain.as_deref()), (Some("strict"), Some("shop.example")));
    assert_eq!((&mesh.namespaces[..], mesh.workloads), (&["shop".to_owned()][..], 1));
    assert_eq!((mesh.skew[0].version.as_str(), mesh.skew[0].workloads), ("1.28.0", 1));
    let web = workload(&inventory, "web");
    assert_eq!(web.spiffe.as_deref(), Some("spiffe://shop.example/ns/shop/sa/web"));
    assert_eq!(web.images[0].digests, ["sha256:11"]);
    assert!(answer(web, "istio").yes, "{:?}", web.releasable);
}

#[test]
fn served_kinds_alone_are_an_installed_mesh() {
    let inventory = inventory("kind: Served\nmetadata: {name: trafficsplits.split.smi-spec.io}");
    let meshes = inventory.meshes();
    assert_eq!((meshes.len(), meshes[0].kind), (1, MeshKind::Smi));
    assert!(meshes[0].control_plane.is_none() && meshes[0].facts[0].strength == Strength::Installed);
}

#[test]
fn ambient_needs_a_waypoint_that_exists() {
    let ambient = web("ambient.istio.io/redirection: enabled", "", "");
    let why = |extra: &str| {
        let inventory = inventory(&format!("{ISTIOD}{extra}{ambient}"));
        answer(workload(&inventory, "web"), "gatewayapi").why.clone()
    };
    assert!(why("").expect("a reason").starts_with("no waypoint"), "{:?}", why(""));
    let labelled =
        "kind: Namespace\nmetadata: {name: shop, labels: {istio.io/use-waypoint: waypoint}}\n---\n";
    assert_eq!(why(labelled).as_deref(), Some("its waypoint shop/waypoint does not exist"));
    let gateway = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: shop}
spec: {gatewayClassName: istio-waypoint}
---
";
    assert_eq!(why(&format!("{labelled}{gateway}")), None);
    let inventory = inventory(&format!("{ISTIOD}{labelled}{gateway}{ambient}"));
    let web = workload(&inventory, "web");
    assert_eq!(web.meshes[0].waypoint.as_deref(), Some("shop/waypoint"));
    assert!(answer(web, "istio").why.as_deref().is_some_and(|why| why.contains("alpha")));
}

#[test]
fn two_meshes_on_one_workload_are_refused() {
    let both = web("sidecar.istio.io/status: '{}', linkerd.io/proxy-version: v2", "", "");
    let inventory = inventory(&format!("{ISTIOD}{both}"));
    let web = workload(&inventory, "web");
    assert_eq!(web.meshes.len(), 2);
    assert_eq!(answer(web, "istio").why.as_deref(), Some("two meshes claim it: istio and linkerd"));
    assert!(answer(web, "kubernetes").yes);
}

#[test]
fn a_waypoint_a_gateway_and_a_control_plane_are_roles() {
    for (labels, role) in [
        ("gateway.networking.k8s.io/gateway-class-name: istio-waypoint", Role::Waypoint),
        ("gateway.networking.k8s.io/gateway-class-name: istio", Role::Gateway),
        ("app: istiod", Role::ControlPlane),
    ] {
        let yaml =
            format!("kind: Deployment\nmetadata: {{name: web, namespace: shop, labels: {{{labels}}}}}");
        let inventory = inventory(&yaml);
        let web = workload(&inventory, "web");
        assert_eq!(web.role, role);
        assert!(web.releasable.iter().all(|answer| !answer.yes));
    }
}

#[test]
fn a_released_headless_or_foreign_workload_has_its_own_reason() {
    let canary = "
apiVersion: serin.dev/v1alpha1
kind: Canary
metadata: {name: web, namespace: shop}
spec: {targetRef: {kind: Deployment, name: web}}
";
    let released = inventory(&(web("", "", "") + canary));
    let why = answer(workload(&released, "web"), "kubernetes").why.clone();
    assert_eq!(why.as_deref(), Some("already released by Canary shop/web"));

    let headless = inventory(&web("", "", "").replace("10.0.0.1", "None"));
    let why = answer(workload(&headless, "web"), "kubernetes").why.clone().expect("a reason");
    assert!(why.starts_with("Service shop/web is headless"), "{why}");
}
