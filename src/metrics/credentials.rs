//! The data of a Secret, without a way into logs.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};

/// `Debug` shows only the keys.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Credentials(BTreeMap<String, Vec<u8>>);

impl Credentials {
    /// A value as text, trimmed: editors add line ends.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.0.get(key)?).ok().map(str::trim)
    }

    pub(super) fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice)
    }
}

impl From<&Secret> for Credentials {
    fn from(secret: &Secret) -> Self {
        let data = secret.data.iter().flatten().map(|(key, ByteString(value))| (key.clone(), value.clone()));
        let text = secret.string_data.iter().flatten();
        Self(data.chain(text.map(|(key, value)| (key.clone(), value.clone().into_bytes()))).collect())
    }
}

impl<K: Into<String>, V: Into<Vec<u8>>> FromIterator<(K, V)> for Credentials {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(data: I) -> Self {
        Self(data.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let credentials = Credentials::from_iter([("password", "hunter2"), ("username", "serin")]);
        let shown = format!("{credentials:?}");
        assert!(shown.contains("password") && !shown.contains("hunter2") && !shown.contains("\"serin\""));
    }

    #[test]
    fn surrounding_whitespace_is_not_part_of_a_secret() {
        assert_eq!(Credentials::from_iter([("token", "abc\n")]).text("token"), Some("abc"));
    }
}
