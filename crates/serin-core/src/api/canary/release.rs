//! Release windows and rollback settings.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::Duration;

/// A recurring time in which releases may or may not move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseWindow {
    /// Whether releases may move in this window, or may not. Default: allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<WindowKind>,

    /// When the window opens, as five fields: minute, hour, day of month, month,
    /// day of week. `0 9 * * 1-5` is nine o'clock on working days.
    #[x_kube(
        validation = ("self.trim().size() > 0",
            "releaseWindows[].cron is empty: say when the window begins, such as '0 9 * * 1-5'"),
        validation = ("self.trim().size() == 0 || self.trim().matches('^[^ ]+( +[^ ]+){4}$')",
            "releaseWindows[].cron needs five fields: minute, hour, day of month, month, day of week, such as '0 9 * * 1-5'"),
    )]
    #[schemars(length(max = 128))]
    pub cron: String,

    /// Zone of `cron`, by its IANA name such as `Europe/Berlin`. Default: UTC.
    #[schemars(length(min = 1, max = 64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,

    /// How long the window stays open, at least 1m.
    #[x_kube(validation = Duration::at_least("1m", "releaseWindows[].duration"))]
    pub duration: Duration,
}

/// Kinds of window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowKind {
    /// releases may move in this window; if there is any such window, they may
    /// not move outside.
    #[default]
    Allow,
    /// releases may not move in this window; it takes precedence over every
    /// allow.
    Freeze,
}

/// Settings of the rollback after a promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// Seconds that the pods of the previous version stay up after a promotion,
    /// so that a rollback is instant. Default: 0.
    #[schemars(range(min = 0, max = 604_800))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_warm_seconds: Option<u32>,
}
