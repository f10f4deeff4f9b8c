//! `spec.text` of an AlertProvider: the text of its messages.

use std::collections::BTreeMap;

use super::{Notification, text};
use crate::tenant_template;

/// Of one value, in characters: a template may repeat it.
const MAX_VALUE_CHARS: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("spec.text contains {0}; between {{{{ and }}}} only variables are supported")]
    Unsupported(&'static str),
    #[error("spec.text cannot be rendered: {0}")]
    Invalid(#[from] minijinja::Error),
}

pub fn render(template: &str, notification: &Notification) -> Result<String, TextError> {
    if let Some(what) = tenant_template::unsupported_syntax(template) {
        return Err(TextError::Unsupported(what));
    }
    let Notification { name, namespace, cluster, phase, step, revision, image, sentence, link, .. } =
        notification;
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    let command = notification.approval.as_ref().map(|approval| approval.command.clone());
    let values = [
        ("name", name.clone()),
        ("namespace", namespace.clone()),
        ("cluster", or_empty(cluster)),
        ("phase", format!("{phase:?}")),
        ("weight", notification.share().to_string()),
        ("step", or_empty(step)),
        ("revision", or_empty(revision)),
        ("image", or_empty(image)),
        ("reason", notification.reason.to_owned()),
        ("severity", format!("{:?}", notification.severity).to_lowercase()),
        ("sentence", sentence.clone()),
        ("verdict", text::summary(&notification.metrics)),
        ("command", command.unwrap_or_default()),
        ("link", or_empty(link)),
    ];
    let values: BTreeMap<&str, String> =
        values.into_iter().map(|(key, value)| (key, text::truncate(&value, MAX_VALUE_CHARS))).collect();
    Ok(tenant_template::environment().render_named_str("text", template, values)?)
}
