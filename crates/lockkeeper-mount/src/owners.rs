//! Who owns a lock: from the kernel's owner values to owners that are never confused.
//!
//! A pure state machine; it is told what arrives and says what that means.
//!
//! # What the kernel sends
//! Each lock request carries an *owner value* `v`. It stands for the process's descriptor table in a
//! POSIX request and for the open file description in an OFD or flock request. Both look alike, both
//! may be 0, and when the thing behind a value is freed the value comes back for an unrelated one.
//!
//! # What is kept
//! An open file description is exactly one FUSE handle, from OPEN to RELEASE. So the owner of OFD and
//! flock locks is *the handle*: the value is needed only to know that this is meant.
//!
//! A process is known by its value from its first request until the last handle it has *used* is gone.
//! `v` is *used* on handle `h` when `v` sent a lock request through it, until a FLUSH by `v` on that
//! file (the process has closed a descriptor of it, and with that lost all its locks there) or the
//! RELEASE of `h`. While a use is there, the process still has the descriptor in its table, so it
//! lives, so the value is its own. With the last use its id goes, and whoever has the value next gets
//! a fresh one. A request that waits holds its process too: its thread sleeps in the call.
//!
//! # Rules
//! 1. `v` with the flock bit on `h`: the owner is the handle, and from then on `v` without the flock
//!    bit on `h` is an OFD request.
//! 2. `v` used anywhere as a process: a process, everywhere. Open files of two handles never share
//!    a value, and a living process's value is nobody else's.
//! 3. `v` known as the open file of `h`: an OFD request.
//! 4. Otherwise somebody must look at the caller; where that is not possible, it counts as a process.
//!    A wrong guess is bounded: such locks go at RELEASE of the handle like the right ones, exclusion
//!    holds, and only deadlock detection takes it for a process.
//! 5. FLUSH by `v` on `h`: the process `v` loses its locks on the file of `h`, nothing else happens.
//! 6. RELEASE of `h`: the handle's own locks go. A process with no other use on that file loses its
//!    locks there too: its FLUSH got lost, or rule 4 guessed wrong. A process that has taken locks
//!    through another handle since keeps them (FLUSH on `h` ended its use of `h`).

use hashbrown::HashMap;

use crate::locks::{FileId, HandleId};

/// What an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// A process: POSIX locks.
    Process,
    /// An open file description: OFD locks and flocks.
    OpenFile,
}

/// An owner of locks. The number is given out once and never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Process or open file description.
    pub kind: OwnerKind,
    /// Unique among all owners of a mount, of either kind, for as long as it is mounted.
    pub id: u64,
}

/// The kernel's owner value, as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerValue(pub u64);

/// An owner that is to lose everything it holds on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The file.
    pub file: FileId,
    /// The owner.
    pub owner: Owner,
}

#[derive(Debug, Default)]
struct OpenFile {
    owner: Option<u64>,
    value: Option<OwnerValue>,
    /// Processes with a use of this handle. Few: those who share it by fork.
    processes: Vec<OwnerValue>,
}

#[derive(Debug, Default)]
struct Uses {
    handles: Vec<HandleId>,
    waits: usize,
}

#[derive(Debug)]
struct Process {
    id: u64,
    files: HashMap<FileId, Uses>,
    /// A use that is noted below, for the quick answer.
    last_used: Option<(HandleId, FileId)>,
}

/// All owners that have locks, wait for some, or may have either.
#[derive(Debug, Default)]
pub struct Owners {
    handles: HashMap<HandleId, OpenFile>,
    processes: HashMap<OwnerValue, Process>,
    last_id: u64,
}

impl Owners {
    fn fresh(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The kind of owner that `value` on `handle` is known to be, by rules 1 to 3.
    pub fn known_kind(&self, handle: HandleId, value: OwnerValue) -> Option<OwnerKind> {
        if self.processes.contains_key(&value) {
            return Some(OwnerKind::Process);
        }
        let known = self.handles.get(&handle)?;
        (known.value == Some(value)).then_some(OwnerKind::OpenFile)
    }

    /// The owner, without noting anything: for queries and unlocks. `None` if it holds nothing.
    pub fn peek(&self, handle: HandleId, value: OwnerValue, kind: OwnerKind) -> Option<Owner> {
        let id = match kind {
            OwnerKind::Process => self.processes.get(&value)?.id,
            OwnerKind::OpenFile => self.handles.get(&handle)?.owner?,
        };
        Some(Owner { kind, id })
    }

    /// The process that has locked through `handle`, if there is exactly one.
    pub fn only_process(&self, handle: HandleId) -> Option<Owner> {
        match self.handles.get(&handle)?.processes[..] {
            [value] => self.peek(handle, value, OwnerKind::Process),
            _ => None,
        }
    }

    /// An owner that nobody is and that holds nothing: for queries by an owner not known here.
    pub fn nobody(&mut self, kind: OwnerKind) -> Owner {
        Owner {
            kind,
            id: self.fresh(),
        }
    }

    /// The owner of a request for a lock through `handle`, open on `file`; notes the use.
    pub fn resolve(
        &mut self,
        handle: HandleId,
        file: FileId,
        value: OwnerValue,
        kind: OwnerKind,
    ) -> Owner {
        let id = match kind {
            OwnerKind::OpenFile => {
                let known = self.handles.get(&handle).and_then(|handle| handle.owner);
                let id = known.unwrap_or_else(|| self.fresh());
                let open_file = self.handles.entry(handle).or_default();
                open_file.owner = Some(id);
                open_file.value = Some(value);
                id
            }
            OwnerKind::Process => {
                let id = match self.processes.get(&value) {
                    Some(process) => process.id,
                    None => self.fresh(),
                };
                self.note_use(handle, file, value, id);
                id
            }
        };
        Owner { kind, id }
    }

    /// The owner of a request for a lock, where the kind of the value is known; notes the use.
    pub fn resolve_known(
        &mut self,
        handle: HandleId,
        file: FileId,
        value: OwnerValue,
    ) -> Option<Owner> {
        // By far the most requests are by a process that has locked through the handle before.
        if let Some(process) = self.processes.get(&value)
            && process.last_used == Some((handle, file))
        {
            return Some(Owner {
                kind: OwnerKind::Process,
                id: process.id,
            });
        }
        let kind = self.known_kind(handle, value)?;
        Some(self.resolve(handle, file, value, kind))
    }

    fn note_use(&mut self, handle: HandleId, file: FileId, value: OwnerValue, id: u64) {
        let process = self.processes.entry(value).or_insert_with(|| Process {
            id,
            files: HashMap::new(),
            last_used: None,
        });
        process.last_used = Some((handle, file));
        let uses = process.files.entry(file).or_default();
        if !uses.handles.contains(&handle) {
            uses.handles.push(handle);
            self.handles
                .entry(handle)
                .or_default()
                .processes
                .push(value);
        }
    }

    /// A request of `value` begins to wait: its process stays known, whatever is flushed.
    pub fn wait_begins(&mut self, file: FileId, value: OwnerValue) {
        if let Some(process) = self.processes.get_mut(&value) {
            process.files.entry(file).or_default().waits += 1;
        }
    }

    /// The wait is over. Where the lock was granted, this is a use of the handle (again).
    pub fn wait_ends(&mut self, handle: HandleId, file: FileId, value: OwnerValue, granted: bool) {
        let Some(process) = self.processes.get_mut(&value) else {
            return;
        };
        let id = process.id;
        if let Some(uses) = process.files.get_mut(&file) {
            uses.waits = uses.waits.saturating_sub(1);
        }
        if granted {
            self.note_use(handle, file, value, id);
        } else {
            self.tidy(file, value);
        }
    }

    /// FLUSH: `value` has closed a descriptor of `file`. Who loses what, if anybody.
    pub fn flush(&mut self, file: FileId, value: OwnerValue) -> Option<Loss> {
        let process = self.processes.get_mut(&value)?;
        let id = process.id;
        process.last_used = None;
        let uses = process.files.get_mut(&file)?;
        for handle in std::mem::take(&mut uses.handles) {
            self.end_use(handle, value);
        }
        self.tidy(file, value);
        Some(Loss {
            file,
            owner: Owner {
                kind: OwnerKind::Process,
                id,
            },
        })
    }

    /// RELEASE: the open file description `handle` of `file` is gone. Who loses what.
    pub fn release(&mut self, handle: HandleId, file: FileId) -> Vec<Loss> {
        let Some(gone) = self.handles.remove(&handle) else {
            return Vec::new();
        };
        let mut drops = Vec::new();
        if let Some(id) = gone.owner {
            drops.push(Loss {
                file,
                owner: Owner {
                    kind: OwnerKind::OpenFile,
                    id,
                },
            });
        }
        for value in gone.processes {
            let Some(process) = self.processes.get_mut(&value) else {
                continue;
            };
            let id = process.id;
            process.last_used = None;
            let Some(uses) = process.files.get_mut(&file) else {
                continue;
            };
            uses.handles.retain(|&used| used != handle);
            if uses.handles.is_empty() && uses.waits == 0 {
                drops.push(Loss {
                    file,
                    owner: Owner {
                        kind: OwnerKind::Process,
                        id,
                    },
                });
                self.tidy(file, value);
            }
        }
        drops
    }

    fn end_use(&mut self, handle: HandleId, value: OwnerValue) {
        if let Some(open_file) = self.handles.get_mut(&handle) {
            open_file.processes.retain(|&user| user != value);
            if open_file.processes.is_empty() && open_file.owner.is_none() {
                self.handles.remove(&handle);
            }
        }
    }

    /// Forgets what nothing refers to any more.
    fn tidy(&mut self, file: FileId, value: OwnerValue) {
        let Some(process) = self.processes.get_mut(&value) else {
            return;
        };
        if process
            .files
            .get(&file)
            .is_some_and(|uses| uses.handles.is_empty() && uses.waits == 0)
        {
            process.files.remove(&file);
        }
        if process.files.is_empty() {
            self.processes.remove(&value);
        }
    }

    /// How many processes and handles are known: 0 and 0 once everybody has closed everything.
    pub fn counts(&self) -> (usize, usize) {
        (self.processes.len(), self.handles.len())
    }

    /// Panics unless both maps agree with each other.
    #[cfg(test)]
    fn check_invariants(&self) {
        for (value, process) in &self.processes {
            assert!(!process.files.is_empty(), "{value:?} has no use");
            assert!(process.id <= self.last_id);
            if let Some((handle, file)) = process.last_used {
                let uses = &process.files[&file];
                assert!(uses.handles.contains(&handle), "{value:?} has no such use");
            }
            for (file, uses) in &process.files {
                assert!(
                    !uses.handles.is_empty() || uses.waits > 0,
                    "{value:?} {file:?} unused"
                );
                for handle in &uses.handles {
                    assert!(
                        self.handles[handle].processes.contains(value),
                        "{handle:?} {value:?}"
                    );
                }
            }
        }
        for (handle, open_file) in &self.handles {
            assert!(
                open_file.owner.is_some() || !open_file.processes.is_empty(),
                "{handle:?} idle"
            );
            assert_eq!(open_file.owner.is_some(), open_file.value.is_some());
            for value in &open_file.processes {
                let uses: usize = self.processes[value]
                    .files
                    .values()
                    .map(|uses| uses.handles.iter().filter(|&used| used == handle).count())
                    .sum();
                assert_eq!(uses, 1, "{handle:?} {value:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::OwnerKind::{OpenFile, Process};
    use super::*;

    const A: FileId = FileId { dev: 1, ino: 1 };
    const B: FileId = FileId { dev: 1, ino: 2 };
    const H1: HandleId = HandleId(1);
    const H2: HandleId = HandleId(2);
    const P: OwnerValue = OwnerValue(100);
    const C: OwnerValue = OwnerValue(200);

    fn drops(drops: &[Loss]) -> Vec<(FileId, u64)> {
        drops
            .iter()
            .map(|drop| (drop.file, drop.owner.id))
            .collect()
    }

    #[test]
    fn fu_01_ofd_locks_go_with_their_handle_though_release_names_no_owner() {
        let mut owners = Owners::default();
        let owner = owners.resolve(H1, A, P, OpenFile);
        // The closing process's FLUSH has a value of its own.
        assert_eq!(owners.flush(A, C), None);
        assert_eq!(drops(&owners.release(H1, A)), [(A, owner.id)]);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn fu_02_release_of_a_shared_handle_leaves_what_was_locked_anew_elsewhere() {
        let mut owners = Owners::default();
        let first = owners.resolve(H1, A, P, Process);
        // The child shares H1. The parent closes it: its locks go, now.
        assert_eq!(owners.flush(A, P).map(|drop| drop.owner), Some(first));
        let second = owners.resolve(H2, A, P, Process);
        // The child closes H1.
        assert_eq!(owners.flush(A, C), None);
        assert_eq!(owners.release(H1, A), []);
        assert_eq!(owners.peek(H2, P, Process), Some(second));
        assert_eq!(drops(&owners.release(H2, A)), [(A, second.id)]);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn several_owners_of_one_handle_lose_their_own_locks_only() {
        let mut owners = Owners::default();
        let (parent, child) = (
            owners.resolve(H1, A, P, Process),
            owners.resolve(H1, A, C, Process),
        );
        let handle = owners.resolve(H1, A, OwnerValue(300), OpenFile);
        assert_ne!(parent, child);
        assert_eq!(owners.flush(A, C).map(|drop| drop.owner), Some(child));
        assert_eq!(owners.peek(H1, P, Process), Some(parent));
        assert_eq!(owners.flush(A, P).map(|drop| drop.owner), Some(parent));
        assert_eq!(drops(&owners.release(H1, A)), [(A, handle.id)]);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn closing_any_descriptor_of_a_file_drops_all_of_the_process_there_and_nothing_elsewhere() {
        let mut owners = Owners::default();
        let owner = owners.resolve(H1, A, P, Process);
        assert_eq!(
            owners.resolve(HandleId(3), B, P, Process),
            owner,
            "one process, one owner"
        );
        // H2 is another handle of A, through which nothing was locked: its FLUSH counts all the same.
        assert_eq!(
            owners.flush(A, P).map(|drop| (drop.file, drop.owner)),
            Some((A, owner))
        );
        assert_eq!(
            owners.peek(HandleId(3), P, Process),
            Some(owner),
            "still owns in B"
        );
        assert_eq!(owners.flush(A, P), None, "nothing left to lose");
    }

    #[test]
    fn a_reused_value_is_another_owner() {
        let mut owners = Owners::default();
        let first = owners.resolve(H1, A, P, Process);
        owners.flush(A, P);
        owners.release(H1, A);
        // The value comes back: as another process, then as an open file.
        let second = owners.resolve(H2, A, P, Process);
        assert_ne!(first.id, second.id);
        owners.flush(A, P);
        assert_eq!(owners.known_kind(H2, P), None, "must be asked for again");
        let third = owners.resolve(H2, A, P, OpenFile);
        assert!(third.id > second.id);
    }

    #[test]
    fn value_0_is_a_value_like_any_other() {
        let mut owners = Owners::default();
        let zero = OwnerValue(0);
        let owner = owners.resolve(H1, A, zero, Process);
        assert_eq!(owners.known_kind(H1, zero), Some(Process));
        assert_eq!(owners.flush(A, zero).map(|drop| drop.owner), Some(owner));
        let handle = owners.resolve(H1, A, zero, OpenFile);
        assert_eq!(owners.flush(A, zero), None);
        assert_eq!(drops(&owners.release(H1, A)), [(A, handle.id)]);
    }

    #[test]
    fn fu_13_a_flock_makes_the_value_known_as_an_open_file() {
        let mut owners = Owners::default();
        let flock = owners.resolve(H1, A, P, OpenFile);
        assert_eq!(owners.known_kind(H1, P), Some(OpenFile));
        assert_eq!(owners.known_kind(H2, P), None);
        // The same process's record lock through the same handle has its own value.
        assert_eq!(owners.known_kind(H1, C), None);
        let process = owners.resolve(H1, A, C, Process);
        // Closing a dup: FLUSH with the process's value leaves the flock.
        assert_eq!(owners.flush(A, C).map(|drop| drop.owner), Some(process));
        assert_eq!(drops(&owners.release(H1, A)), [(A, flock.id)]);
    }

    #[test]
    fn a_process_is_known_on_every_handle() {
        let mut owners = Owners::default();
        owners.resolve(H1, A, P, Process);
        assert_eq!(owners.known_kind(H2, P), Some(Process));
    }

    #[test]
    fn a_wrong_guess_still_ends_with_its_handle() {
        let mut owners = Owners::default();
        // An OFD request that could not be told apart; no FLUSH will ever name its value.
        let guess = owners.resolve(H1, A, P, Process);
        assert_eq!(drops(&owners.release(H1, A)), [(A, guess.id)]);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn a_waiter_keeps_its_owner_over_a_flush_by_another_thread() {
        let mut owners = Owners::default();
        let owner = owners.resolve(H1, A, P, Process);
        owners.wait_begins(A, P);
        assert_eq!(owners.flush(A, P).map(|drop| drop.owner), Some(owner));
        owners.wait_ends(H1, A, P, true);
        // The kernel notices the race and unlocks what was granted: it must find the same owner.
        assert_eq!(owners.peek(H1, P, Process), Some(owner));
        assert_eq!(drops(&owners.release(H1, A)), [(A, owner.id)]);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn an_interrupted_waiter_leaves_nothing() {
        let mut owners = Owners::default();
        owners.resolve(H1, A, P, Process);
        owners.wait_begins(A, P);
        owners.flush(A, P);
        owners.wait_ends(H1, A, P, false);
        assert_eq!(owners.release(H1, A), []);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[test]
    fn messages_about_unknown_handles_mean_nothing() {
        let mut owners = Owners::default();
        assert_eq!(owners.flush(A, P), None);
        assert_eq!(owners.release(H1, A), []);
        owners.wait_ends(H1, A, P, true);
        assert_eq!(owners.counts(), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Lock {
            handle: u64,
            value: u64,
            kind: OwnerKind,
        },
        WaitBegins {
            handle: u64,
            value: u64,
        },
        WaitEnds {
            granted: bool,
        },
        Flush {
            handle: u64,
            value: u64,
        },
        Release {
            handle: u64,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![Just(Process), Just(OpenFile)];
        prop_oneof![
            4 => (0..6_u64, 0..4_u64, kind).prop_map(|(handle, value, kind)| Step::Lock { handle, value, kind }),
            1 => (0..6_u64, 0..4_u64).prop_map(|(handle, value)| Step::WaitBegins { handle, value }),
            1 => any::<bool>().prop_map(|granted| Step::WaitEnds { granted }),
            2 => (0..6_u64, 0..4_u64).prop_map(|(handle, value)| Step::Flush { handle, value }),
            1 => (0..6_u64).prop_map(|handle| Step::Release { handle }),
        ]
    }

    proptest! {
        /// Any sequence keeps the maps consistent, and closing everything leaves nothing behind.
        #[test]
        fn any_sequence_of_messages_ends_empty(steps in prop::collection::vec(step(), 0..60)) {
            // Six handles on three files.
            let file = |handle: u64| FileId { dev: 1, ino: handle % 3 };
            let mut owners = Owners::default();
            let mut waits = Vec::new();
            for step in steps {
                match step {
                    Step::Lock { handle, value, kind } => {
                        let (handle, value, file) = (HandleId(handle), OwnerValue(value), file(handle));
                        let kind = owners.known_kind(handle, value).unwrap_or(kind);
                        let known = owners.resolve_known(handle, file, value);
                        let owner = owners.resolve(handle, file, value, kind);
                        prop_assert!(known.is_none_or(|known| known == owner));
                        prop_assert_eq!(owners.peek(handle, value, kind), Some(owner));
                    }
                    Step::WaitBegins { handle, value } => {
                        let (handle, value, file) = (HandleId(handle), OwnerValue(value), file(handle));
                        owners.resolve(handle, file, value, Process);
                        owners.wait_begins(file, value);
                        waits.push((handle, file, value));
                    }
                    Step::WaitEnds { granted } => {
                        if let Some((handle, file, value)) = waits.pop() {
                            owners.wait_ends(handle, file, value, granted);
                        }
                    }
                    Step::Flush { handle, value } => drop(owners.flush(file(handle), OwnerValue(value))),
                    // The kernel releases no handle while a request on it waits.
                    Step::Release { handle } if waits.iter().all(|wait| wait.0 != HandleId(handle)) => {
                        drop(owners.release(HandleId(handle), file(handle)));
                    }
                    Step::Release { .. } => {}
                }
                owners.check_invariants();
            }
            for (handle, file, value) in waits {
                owners.wait_ends(handle, file, value, false);
            }
            for handle in 0..6 {
                owners.release(HandleId(handle), file(handle));
                owners.check_invariants();
            }
            prop_assert_eq!(owners.counts(), (0, 0));
        }
    }
}
