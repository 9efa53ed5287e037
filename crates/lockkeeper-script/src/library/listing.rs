//! `held` and `waiting`, from what the library shows of a file.

use lockkeeper::{LockInfo, LockKind};

use super::calls::{script_type, span};
use super::*;

impl Library {
    pub(super) fn held(&self, file: &FileName) -> Carried<Outcome> {
        let snapshot = self.files[self.file_named(file)?].handle.snapshot();
        let granted = snapshot.granted.iter();
        let mut items: Vec<Item> = granted
            .map(|granted| {
                let lock_type = granted.breaking.unwrap_or(Some(granted.lock.lock_type));
                self.item(&granted.lock, lock_type)
            })
            .collect();
        Item::sort(&mut items);
        Ok(Outcome::Listing(items))
    }

    pub(super) fn waiting(&self, file: &FileName) -> Carried<Outcome> {
        let mut waiting = self.files[self.file_named(file)?].handle.snapshot().waiting;
        waiting.sort_by_key(|waiter| waiter.arrival);
        let items = waiting
            .iter()
            .map(|waiter| self.item(&waiter.lock, Some(waiter.lock.lock_type)));
        Ok(Outcome::Listing(items.collect()))
    }

    pub(super) fn item(&self, lock: &LockInfo, lock_type: Option<lockkeeper::LockType>) -> Item {
        let kind = match lock.kind {
            LockKind::Posix => ItemKind::Posix,
            LockKind::Ofd | LockKind::Access => ItemKind::Ofd,
            LockKind::Flock => ItemKind::Flock,
            LockKind::Lease | LockKind::Delegation => ItemKind::Lease,
        };
        Item {
            kind,
            lock_type: script_type(lock_type),
            span: match kind {
                ItemKind::Posix | ItemKind::Ofd => Some(span(lock.range)),
                ItemKind::Flock | ItemKind::Lease => None,
            },
            actor: self.name_of(self.taker(lock)),
        }
    }

    /// The process that took a lock or asks for it.
    fn taker(&self, lock: &LockInfo) -> ProcessId {
        match &lock.owner {
            Owner::Process(process) => *process,
            // An open that waits is known by the description that it will give.
            Owner::OpenFile(OpenFileId(id)) if lock.taken_by == ProcessId(0) => {
                let index = usize::try_from(*id).ok();
                let description = index.and_then(|index| self.descriptions.get(index));
                description.map_or(ProcessId(0), |description| process_id(description.opener))
            }
            Owner::OpenFile(_) | Owner::Remote(_) => lock.taken_by,
        }
    }

    /// The actor that began the process.
    pub(super) fn name_of(&self, id: ProcessId) -> Actor {
        let process = process_index(id).and_then(|index| self.processes.get(index));
        process.map_or_else(|| Actor::outsider(0), |process| process.name.clone())
    }
}
