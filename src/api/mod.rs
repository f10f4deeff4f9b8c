//! What people write: the custom resources of `serin.dev/v1alpha1`, one file a kind.
