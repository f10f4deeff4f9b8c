//! One change of an inventory, as a value: sources that run on their own send them to
//! the owner of the inventory.

use super::inventory::Inventory;
use super::key::Key;
use super::object::Object;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Apply(Object),
    Remove(Key),
}

impl Inventory {
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Apply(object) => self.apply(object),
            Change::Remove(key) => self.remove(&key, None),
        }
    }
}
