//! Memoisation with explicit inputs: a value is computed again only when one of
//! the inputs it was computed from has changed.

use std::{ops::Deref, sync::Arc};

/// The last value, with the inputs it was computed from.
#[derive(Clone, Debug)]
pub struct Memo<K, V>(Option<(K, V)>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: PartialEq, V> Memo<K, V> {
    /// The value, if it was computed from these inputs.
    pub fn hit(&self, inputs: &K) -> Option<&V> {
        self.0.as_ref().filter(|(known, _)| known == inputs).map(|(_, value)| value)
    }

    /// The last value, whatever it was computed from.
    pub fn last(&self) -> Option<&V> {
        self.0.as_ref().map(|(_, value)| value)
    }

    pub fn set(&mut self, inputs: K, value: V) -> &V {
        &self.0.insert((inputs, value)).1
    }

    pub fn clear(&mut self) {
        self.0 = None;
    }
}

/// Shared data that is compared by address: for inputs that are replaced as a
/// whole and are long to compare.
#[derive(Debug)]
pub struct Identity<T: ?Sized>(pub Arc<T>);

impl<T: ?Sized> Clone for Identity<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: ?Sized> PartialEq for Identity<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: ?Sized> Deref for Identity<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_for_its_inputs_and_the_last_one_for_any() {
        let mut memo = Memo::default();
        assert_eq!((memo.hit(&1), memo.last()), (None, None));
        memo.set(1, 10);
        memo.set(2, 20);
        assert_eq!((memo.hit(&1), memo.hit(&2), memo.last()), (None, Some(&20), Some(&20)));
    }

    #[test]
    fn identity_compares_addresses() {
        let one = Identity(Arc::new(1));
        assert!(one == one.clone() && one != Identity(Arc::new(1)));
    }
}
