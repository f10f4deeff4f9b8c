//! The bootstrap of an Envoy that takes its configuration from Serin.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::node::{NodeConfig, TlsFiles};

/// Name of the static cluster of the control plane.
const CLUSTER: &str = "serin-xds";

pub struct Bootstrap {
    /// Unique among proxies.
    pub node: String,
    pub config: NodeConfig,
    pub host: String,
    pub port: u16,
    /// For the connection to the control plane: the files of the proxy, and the name in
    /// the certificate of the control plane.
    pub tls: Option<(TlsFiles, String)>,
    pub admin: Option<SocketAddr>,
}

impl Bootstrap {
    pub fn to_json(&self) -> Value {
        let ads = json!({"ads": {}, "resource_api_version": "V3"});
        let http2 = json!({
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            // A control plane that is gone without a word is noticed, and its replacement found.
            "explicit_http_config": {"http2_protocol_options": {
                "connection_keepalive": {"interval": "30s", "timeout": "5s"},
            }},
        });
        let numeric = self.host.parse::<std::net::IpAddr>().is_ok();
        let mut cluster = json!({
            "name": CLUSTER,
            "type": if numeric { "STATIC" } else { "STRICT_DNS" },
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
            "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [{"endpoint": {
                "address": {"socket_address": {"address": self.host, "port_value": self.port}},
            }}]}]},
        });
        if let Some((files, server)) = &self.tls {
            cluster["transport_socket"] = json!({
                "name": "envoy.transport_sockets.tls",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "sni": server,
                    "common_tls_context": {
                        "alpn_protocols": ["h2"],
                        "tls_certificates": [{
                            "certificate_chain": {"filename": files.certificate},
                            "private_key": {"filename": files.key},
                        }],
                        "validation_context": {
                            "trusted_ca": {"filename": files.ca},
                            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": server}}],
                        },
                    },
                },
            });
        }
        let mut bootstrap = json!({
            "node": {"id": self.node, "cluster": "serin", "metadata": self.config.to_metadata()},
            "dynamic_resources": {
                "ads_config": {
                    "api_type": "DELTA_GRPC",
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": true,
                    "grpc_services": [{"envoy_grpc": {"cluster_name": CLUSTER}}],
                },
                "cds_config": ads,
                "lds_config": ads,
            },
            "static_resources": {"clusters": [cluster]},
        });
        if let Some(admin) = self.admin {
            // Histograms are as new as counters at a scrape, not five seconds old.
            bootstrap["stats_flush_on_admin"] = json!(true);
            bootstrap["admin"] = json!({
                "address": {"socket_address": {"address": admin.ip().to_string(), "port_value": admin.port()}},
            });
        }
        bootstrap
    }
}
