//! A file's locks and waiters as one list of rows, in the order of the tree: each lock is followed by what hangs
//! beneath it, and at the end come those that are just being woken.

use crate::report::{Blocker, FileLocks};

/// A row: a place in one of the two lists of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// The lock at this place.
    Lock(usize),
    /// The request at this place.
    Waiter(usize),
}

/// The rows of a file, and how many wait beneath each lock and waiter.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    file: &'a FileLocks,
    beneath_locks: Vec<usize>,
    beneath_waiters: Vec<usize>,
}

impl Rows<'_> {
    /// Of this file. Costs what there is to be shown, once.
    pub fn new(file: &FileLocks) -> Rows<'_> {
        let mut beneath_locks = vec![0; file.locks.len()];
        let mut beneath_waiters = vec![0; file.waiters.len()];
        // Whoever hangs beneath a waiter comes after it.
        for (index, waiting) in file.waiters.iter().enumerate().rev() {
            let with_itself = beneath_waiters[index] + 1;
            match waiting.blocked_by {
                Some(Blocker::Lock(lock)) if lock < beneath_locks.len() => {
                    beneath_locks[lock] += with_itself;
                }
                Some(Blocker::Waiter(up)) if up < index => beneath_waiters[up] += with_itself,
                _ => {}
            }
        }
        Rows {
            file,
            beneath_locks,
            beneath_waiters,
        }
    }

    /// Each lock with all waiters beneath it, in order; at the end, without a lock, those that are being woken and
    /// what hangs beneath them.
    pub fn trees(&self) -> impl Iterator<Item = (Option<usize>, impl Iterator<Item = usize>)> {
        let locks = self.file.locks.len();
        let mut tops = vec![Vec::new(); locks + 1];
        for (index, waiting) in self.file.waiters.iter().enumerate() {
            match waiting.blocked_by {
                Some(Blocker::Lock(lock)) if lock < locks => tops[lock].push(index),
                Some(Blocker::Waiter(up)) if up < index => {}
                _ => tops[locks].push(index),
            }
        }
        tops.into_iter().enumerate().map(move |(place, tops)| {
            let waiters = tops
                .into_iter()
                .flat_map(|top| top..=(top + self.beneath_waiters[top]));
            ((place < locks).then_some(place), waiters)
        })
    }

    /// All of them, in order.
    pub fn all(&self) -> impl Iterator<Item = Row> {
        self.trees().flat_map(|(lock, waiters)| {
            lock.map(Row::Lock)
                .into_iter()
                .chain(waiters.map(Row::Waiter))
        })
    }

    /// How many wait beneath it, at any depth.
    pub fn beneath(&self, row: Row) -> usize {
        match row {
            Row::Lock(index) => self.beneath_locks[index],
            Row::Waiter(index) => self.beneath_waiters[index],
        }
    }

    /// How deep it is in the list: 0 of what hangs beneath nothing.
    pub fn depth(&self, row: Row) -> usize {
        match row {
            Row::Lock(_) => 0,
            Row::Waiter(index) => {
                let waiting = &self.file.waiters[index];
                match waiting.blocked_by {
                    None => 0,
                    Some(_) => waiting.depth as usize + 1,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::lock;
    use crate::report::{Held, Waiting};

    fn file(locks: usize, waiters: &[(u32, Option<Blocker>)]) -> FileLocks {
        let held = Held {
            lock: lock(1),
            held_for: None,
            breaking: false,
        };
        let waiting = |&(depth, blocked_by)| Waiting {
            lock: lock(1),
            waits_for: None,
            overtaken: 0,
            depth,
            blocked_by,
        };
        FileLocks {
            locks: vec![held; locks],
            waiters: waiters.iter().map(waiting).collect(),
            ..FileLocks::new(1, 1)
        }
    }

    /// `l` a lock, `w` a waiter: place@depth+beneath.
    fn picture(file: &FileLocks) -> String {
        let rows = Rows::new(file);
        let one = |row| {
            let (depth, beneath) = (rows.depth(row), rows.beneath(row));
            match row {
                Row::Lock(index) => format!("l{index}@{depth}+{beneath}"),
                Row::Waiter(index) => format!("w{index}@{depth}+{beneath}"),
            }
        };
        rows.all().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_in_the_order_of_the_tree() {
        use Blocker::{Lock, Waiter};
        let file = file(
            2,
            &[
                (0, Some(Lock(0))),
                (1, Some(Waiter(0))),
                (1, Some(Waiter(0))),
                (2, Some(Waiter(2))),
                (0, Some(Lock(1))),
                (0, None),
            ],
        );
        assert_eq!(
            picture(&file),
            "l0@0+4 w0@1+3 w1@2+0 w2@2+1 w3@3+0 l1@0+1 w4@1+0 w5@0+0"
        );
    }

    #[test]
    fn a_tree_that_makes_no_sense_is_shown_once_each() {
        use Blocker::{Lock, Waiter};
        let file = file(
            1,
            &[
                (0, Some(Waiter(1))),
                (9, Some(Waiter(7))),
                (0, Some(Lock(7))),
            ],
        );
        assert_eq!(picture(&file), "l0@0+0 w0@1+0 w1@10+0 w2@1+0");
    }
}
