//! The values that each template must have on its recording.

/// The results of one template.
pub struct ExpectedValues {
    pub template: &'static str,
    /// The Canary it is evaluated for.
    pub of: &'static str,
    /// One whose value is 0: nothing but errors where success is measured.
    pub zero: Option<&'static str>,
    pub variables: &'static [(&'static str, &'static str)],
    /// The value, with a variable that changes it.
    pub values: &'static [(Option<(&'static str, &'static str)>, f64)],
    pub expected_counts: ExpectedCounts,
}

/// Counts within the window.
pub enum ExpectedCounts {
    Uncounted,
    /// Bad and all, of each arm.
    Requests {
        canary: (u64, u64),
        primary: (u64, u64),
    },
    /// The buckets of the recording.
    Durations,
    /// Likewise, as values, and the requests of each arm, if they are counted.
    Values(Option<(u64, u64)>),
}

/// All that serve requests are recorded alike: of the canary's 400 each half
/// minute 12 fail, of the primary's 3600 18.
const fn success_rate(template: &'static str) -> ExpectedValues {
    ExpectedValues {
        template,
        of: "web",
        zero: Some("down"),
        variables: &[],
        values: &[(None, 97.0)],
        expected_counts: ExpectedCounts::Requests { canary: (120, 4000), primary: (180, 36000) },
    }
}

/// Half of the canary's requests take 50 ms or less, nine of ten 100 ms.
const fn latency(template: &'static str) -> ExpectedValues {
    ExpectedValues {
        template,
        of: "web",
        zero: None,
        variables: &[],
        values: &[
            (None, 250.0),
            (Some(("quantile", "0.99")), 250.0),
            (Some(("quantile", "0.9")), 100.0),
            (Some(("quantile", "0.5")), 50.0),
        ],
        expected_counts: ExpectedCounts::Durations,
    }
}

/// It has no single value.
const fn values(template: &'static str, requests: Option<(u64, u64)>) -> ExpectedValues {
    ExpectedValues {
        template,
        of: "web",
        zero: None,
        variables: &[],
        values: &[],
        expected_counts: ExpectedCounts::Values(requests),
    }
}

const fn value(
    template: &'static str,
    value: &'static [(Option<(&'static str, &'static str)>, f64)],
) -> ExpectedValues {
    ExpectedValues {
        template,
        of: "web",
        zero: None,
        variables: &[],
        values: value,
        expected_counts: ExpectedCounts::Uncounted,
    }
}

pub const EXPECTED: &[ExpectedValues] = &[
    success_rate("istio-success-rate"),
    latency("istio-latency"),
    ExpectedValues {
        of: "calls",
        zero: Some("calls-down"),
        values: &[(None, 88.0)],
        expected_counts: ExpectedCounts::Requests { canary: (120, 1000), primary: (50, 10000) },
        ..success_rate("istio-grpc-success-rate")
    },
    ExpectedValues {
        variables: &[("gateway", "public-istio")],
        ..success_rate("istio-gateway-success-rate")
    },
    ExpectedValues { variables: &[("gateway", "public-istio")], ..latency("istio-gateway-latency") },
    success_rate("linkerd-success-rate"),
    // Linkerd has no bound at 250 ms.
    ExpectedValues {
        values: &[(None, 200.0), (Some(("quantile", "0.9")), 100.0), (Some(("quantile", "0.5")), 50.0)],
        ..latency("linkerd-latency")
    },
    success_rate("app-mesh-success-rate"),
    latency("app-mesh-latency"),
    success_rate("envoy-gateway-success-rate"),
    latency("envoy-gateway-latency"),
    success_rate("contour-success-rate"),
    latency("contour-latency"),
    success_rate("traefik-success-rate"),
    // These are the bounds that Traefik has.
    ExpectedValues {
        values: &[(None, 1200.0), (Some(("quantile", "0.9")), 300.0), (Some(("quantile", "0.5")), 100.0)],
        ..latency("traefik-latency")
    },
    success_rate("grpc-success-rate"),
    latency("grpc-latency"),
    values("revenue", Some((4000, 36000))),
    values("order-value", None),
    // 18 of the 600 periods of the canary's two pods.
    ExpectedValues {
        zero: None,
        values: &[(None, 3.0)],
        expected_counts: ExpectedCounts::Requests { canary: (180, 6000), primary: (30, 6000) },
        ..success_rate("cpu-throttling")
    },
    // 96 of 128 MiB.
    value("memory-of-limit", &[(None, 75.0)]),
    ExpectedValues { zero: Some("calm"), ..value("restarts", &[(None, 3.0)]) },
    ExpectedValues { zero: Some("calm"), ..value("oom-kills", &[(None, 1.0)]) },
    ExpectedValues {
        variables: &[("group", "orders-canary"), ("topic", "orders")],
        ..value("kafka-consumer-lag", &[(None, 42.0), (Some(("topic", ".+")), 70042.0)])
    },
    ExpectedValues { variables: &[("topic", "orders")], ..value("kafka-records-lag-max", &[(None, 17.0)]) },
];
