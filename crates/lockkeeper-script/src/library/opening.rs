//! open(2), truncate(2) and leases.
//!
//! An open counts among those that have the file open from before it looks for leases until it fails or
//! its description is closed, also while it waits. truncate(2) counts as a writer while it runs.

use lockkeeper::{BreakScope, LeaseState, Openers};

use super::calls::{lock_type_of, script_type};
use super::*;

impl Library {
    pub(super) fn open_or_resize(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        let (file, access, nonblock) = match verb {
            Verb::Open {
                file,
                access,
                nonblock,
                ..
            } => (self.create(file), *access, *nonblock),
            Verb::Resize { size: ..0, .. } => return Ok(Outcome::Error(Errno::EINVAL)),
            Verb::Resize { file, .. } => (self.file_named(file)?, Access::Write, false),
            _ => return Err(ExecutorError::Misuse(format!("`{verb}` opens nothing"))),
        };
        let opener = self.thread(name)?.process;
        self.descriptions.push(Description {
            file,
            access,
            offset: 0,
            references: 0,
            opener,
        });
        let description = self.descriptions.len() - 1;
        let breaks = match access {
            Access::Read => lockkeeper::LockType::Read,
            Access::Write | Access::ReadWrite => lockkeeper::LockType::Write,
        };
        let handle = self.files[file].handle.clone();
        let opening = handle.opening(open_file_id(description), breaks, BreakScope::All);
        if !nonblock {
            return self.begin_wait(name, verb, description, |_, id, answer| {
                opening.wait_callback(id, answer)
            });
        }
        let outcome = plain(opening.try_break());
        if let (Outcome::Ok, Verb::Open { fd, .. }) = (&outcome, verb) {
            self.install(opener, fd, description);
        }
        Ok(outcome)
    }

    /// The file of this name, created where it is new.
    fn create(&mut self, name: &FileName) -> usize {
        if let Some(file) = self.names.get(name) {
            return *file;
        }
        let file = self.files.len();
        let id = FileId::new(0, file as u64);
        self.files.push(File {
            id,
            handle: self.manager.file(id),
            size: 0,
        });
        self.names.insert(name.clone(), file);
        file
    }

    pub(super) fn lease(
        &mut self,
        name: &Actor,
        fd: &Descriptor,
        lock_type: LockType,
    ) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        let process = self.thread(name)?.process;
        let handle = &self.file_of(description).handle;
        let lease = handle
            .lease(open_file_id(description))
            .taken_by(process_id(process));
        Ok(plain(match lock_type_of(lock_type) {
            None => lease.unlock(),
            Some(lock_type) => lease.set(lock_type, self.openers_besides(description)),
        }))
    }

    /// How the file of a description is open. Writers count that one, too.
    fn openers_besides(&self, description: usize) -> Openers {
        let file = self.descriptions[description].file;
        let mut openers = Openers::default();
        for (index, other) in self.descriptions.iter().enumerate() {
            if other.file == file && other.references > 0 {
                openers.writers += u32::from(other.access != Access::Read);
                openers.others += u32::from(index != description);
            }
        }
        openers
    }

    pub(super) fn lease_query(&mut self, name: &Actor, fd: &Descriptor) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        let handle = &self.file_of(description).handle;
        Ok(match handle.lease(open_file_id(description)).get() {
            Ok(LeaseState::Held(lock_type)) => Outcome::Lease(script_type(Some(lock_type))),
            Ok(LeaseState::Unlocked) => Outcome::Lease(LockType::Unlock),
            Err(failed) => error(&failed),
        })
    }
}
