//! The locks that a table keeps in itself: all that most files ever have.
//!
//! A lock is put into its place field by field, and never as a whole: a value that
//! was just put together from parts is not there yet when it is read in larger
//! ones, and to wait for that took a fifth of the time of a lock.

use super::locks::{Request, Space};
use crate::lock::{LockInfo, LockKind, LockType, Time};
use crate::owner::{Owner, ProcessId};
use crate::range::Range;

/// At most so many locks.
pub(super) const FEW: usize = 2;

/// The locks.
#[derive(Debug)]
pub(crate) struct Few([Held; FEW]);

/// A lock, or room for one.
#[derive(Debug)]
pub(crate) struct Held {
    pub(super) range: Range,
    pub(super) owner: Owner,
    pub(super) taken_by: ProcessId,
    pub(super) since: Time,
    pub(super) lock_type: LockType,
    pub(super) space: Space,
    /// False where this is room, and nothing else here counts.
    is_held: bool,
}

/// Where a request's lock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In place of the owner's lock on the very bytes.
    Own(usize),
    /// Into this room.
    Free(usize),
    /// Nowhere: another's lock is in the way.
    InTheWay,
    /// Nowhere: to join, cut or replace, or one too many.
    None,
}

/// What came of a request.
pub(super) enum Tried {
    /// It was granted.
    Granted,
    /// A lock is in the way.
    InTheWay,
    /// It takes the full structures.
    Beyond,
}

impl Held {
    const ROOM: Held = Held {
        range: Range::WHOLE,
        owner: Owner::Process(ProcessId(0)),
        taken_by: ProcessId(0),
        since: Time(0),
        lock_type: LockType::Read,
        space: Space::Records,
        is_held: false,
    };

    /// Whether the request must wait for this lock.
    pub(super) fn is_in_the_way(&self, request: &Request) -> bool {
        self.space == request.space
            && self.owner != request.owner
            && self.range.overlaps(request.range)
            && self.lock_type.excludes(request.lock_type)
    }

    #[cold]
    pub(super) fn info(&self) -> LockInfo {
        LockInfo {
            kind: match self.space {
                Space::Records => LockKind::of_record(&self.owner),
                _ => LockKind::Flock,
            },
            lock_type: self.lock_type,
            range: self.range,
            owner: self.owner.clone(),
            taken_by: self.taken_by,
        }
    }

    #[inline]
    fn leave(&mut self) {
        self.is_held = false;
        if let Owner::Remote(_) = self.owner {
            self.owner = Held::ROOM.owner;
        }
    }
}

impl Few {
    pub(super) const NONE: Few = Few([Held::ROOM; FEW]);

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.0.iter().filter(|held| held.is_held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|held| !held.is_held)
    }

    /// One of the locks, which leaves.
    pub(super) fn take(&mut self) -> Option<Held> {
        let held = self.0.iter_mut().find(|held| held.is_held)?;
        Some(core::mem::replace(held, Held::ROOM))
    }

    #[inline]
    pub(super) fn place_for(&self, request: &Request) -> Place {
        let mut place = Place::None;
        for (index, held) in self.0.iter().enumerate() {
            if !held.is_held {
                if place == Place::None {
                    place = Place::Free(index);
                }
                continue;
            }
            if held.space != request.space {
                continue;
            }
            if held.owner == request.owner {
                if held.range == request.range {
                    place = Place::Own(index);
                } else if held.range.touches(request.range) {
                    return self.unless_in_the_way(request);
                }
            } else if held.lock_type.excludes(request.lock_type)
                && held.range.overlaps(request.range)
            {
                return match request.space {
                    Space::Records => Place::InTheWay,
                    // The owner's own of the other type goes first.
                    _ => Place::None,
                };
            }
        }
        place
    }

    /// `Place::None`, or what comes before it.
    #[cold]
    fn unless_in_the_way(&self, request: &Request) -> Place {
        let is_in_the_way = self.iter().any(|held| held.is_in_the_way(request));
        match is_in_the_way && request.space == Space::Records {
            true => Place::InTheWay,
            false => Place::None,
        }
    }

    /// Puts the lock of a request into its place.
    #[inline]
    pub(super) fn put(&mut self, place: Place, request: &Request, now: Time) {
        match place {
            Place::Own(index) => {
                let held = &mut self.0[index];
                if held.lock_type != request.lock_type {
                    held.lock_type = request.lock_type;
                    held.taken_by = request.taken_by;
                    held.since = now;
                }
            }
            Place::Free(index) => {
                let held = &mut self.0[index];
                held.range = request.range;
                held.owner.clone_from(&request.owner);
                held.taken_by = request.taken_by;
                held.since = now;
                held.lock_type = request.lock_type;
                held.space = request.space;
                held.is_held = true;
            }
            Place::InTheWay | Place::None => {}
        }
    }

    /// Whether the request is for the very flock that its owner has in this place:
    /// that changes nothing, so it overtakes nobody.
    #[inline]
    pub(super) fn is_held_flock(&self, place: Place, request: &Request) -> bool {
        request.space == Space::Flocks
            && matches!(place, Place::Own(own) if self.0[own].lock_type == request.lock_type)
    }

    /// Gives up the owner's locks on `range`. False where that is to shrink or
    /// split one; nothing has changed then.
    #[inline]
    pub(super) fn unlock(&mut self, owner: &Owner, range: Range, space: Space) -> bool {
        let is_meant = |held: &Held| {
            held.is_held
                && held.space == space
                && held.range.overlaps(range)
                && held.owner == *owner
        };
        for held in &self.0 {
            if is_meant(held) && !range.contains(held.range) {
                return false;
            }
        }
        for held in &mut self.0 {
            if is_meant(held) {
                held.leave();
            }
        }
        true
    }

    /// The lock in the request's way with the lowest first byte.
    pub(super) fn first_in_the_way(&self, request: &Request) -> Option<LockInfo> {
        self.iter()
            .filter(|held| held.is_in_the_way(request))
            .min_by_key(|held| held.range)
            .map(Held::info)
    }

    /// The owner's record lock in `range` with the lowest first byte.
    pub(super) fn first_of(&self, owner: &Owner, range: Range) -> Option<LockInfo> {
        self.iter()
            .filter(|held| {
                held.space == Space::Records && held.owner == *owner && held.range.overlaps(range)
            })
            .min_by_key(|held| held.range)
            .map(Held::info)
    }

    /// Panics unless the locks can stand side by side.
    pub(super) fn check_invariants(&self) {
        if let [a, b] = &self.0
            && a.is_held
            && b.is_held
            && a.space == b.space
        {
            if a.owner == b.owner {
                assert!(!a.range.touches(b.range), "own locks touch");
            } else if a.range.overlaps(b.range) {
                assert!(!a.lock_type.excludes(b.lock_type), "conflicting grants");
            }
        }
    }
}
