//! Parts that the kinds of the inventory share: Mesh, Workload and MeshService.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Entries of a list; `count` says how many there are.
pub const MAX_ITEMS: usize = 10;

/// Characters of a text; longer ones are cut.
pub const MAX_TEXT: usize = 160;

/// The first ten of a list, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BoundedList {
    /// The first ten, in order.
    #[schemars(length(max = 10))]
    pub items: Vec<String>,

    /// How many there are.
    pub count: u64,
}

impl BoundedList {
    pub fn new(all: impl IntoIterator<Item = String>) -> Self {
        let mut list = Self::default();
        for text in all {
            list.count += 1;
            if list.items.len() < MAX_ITEMS {
                list.items.push(bounded_text(&text));
            }
        }
        list
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Cut to [`MAX_TEXT`] characters.
pub fn bounded_text(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The object in its cluster that an entry of the inventory is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryRef {
    /// Kind of the object.
    pub kind: String,

    /// Namespace of the object.
    pub namespace: String,

    /// Name of the object.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_list_keeps_ten_and_counts_all() {
        let list = BoundedList::new((0..25).map(|at| format!("{at}{}", "x".repeat(500))));
        assert_eq!((list.items.len(), list.count), (MAX_ITEMS, 25));
        assert!(list.items.iter().all(|text| text.chars().count() == MAX_TEXT + 1));
    }
}
