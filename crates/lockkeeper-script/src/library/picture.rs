//! Files as a person would draw them.

use super::*;

impl Library {
    pub(super) fn draw(&self) -> String {
        String::new()
    }
}
