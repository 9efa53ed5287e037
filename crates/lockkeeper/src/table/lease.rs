//! Leases and delegations of one file (fcntl(2), "Leases").
//!
//! A lease lets its holder know before another open conflicts with what it has
//! cached: a read lease is broken by an open for writing or a truncation, a
//! write lease by any other open. The holder is told, and has the break time to
//! give the lease up or weaken it; then it is weakened or removed for it. The
//! opener waits as a waiter of the tree beneath the lease, or is refused.
//!
//! A delegation is a lease of a server's own kind (NFS). It keeps no rule about
//! how the file is open, which its server checks itself, and its holder's own
//! opens do not break it.
//!
//! The state of a lease during a break follows the kernel's: two independent
//! marks, "must be weakened by" and "must go by". Of these the stronger is the
//! lease's target, which F_GETLEASE shows.

use super::locks::{Context, Locks, Request, Space};
use super::waiting::Obstacle;
use crate::error::LockError;
use crate::lock::{LockInfo, LockKind, LockType, Time};
use crate::owner::{FileOwner, Owner, ProcessId};
use crate::range::Range;
use crate::slab::NIL;

/// Which family of leases an operation breaks.
///
/// Linux's open and truncate break all; its unlink, rename and change of
/// attributes break delegations alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakScope {
    /// Plain leases; delegations are left alone.
    Leases,
    /// Delegations; plain leases are left alone.
    Delegations,
    /// Both.
    All,
}

/// How else the file is open when a lease is asked for. The table does not know
/// who opens files; its caller does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Openers {
    /// Open file descriptions that can write, the asker's own included, and
    /// openers for writing that wait.
    pub writers: u32,
    /// Open file descriptions but for the asker's own, and openers that wait.
    pub others: u32,
}

/// What the holder of a lease that is being broken has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseBreak {
    /// Whose lease it is.
    pub owner: Owner,
    /// The process that took it.
    pub taken_by: ProcessId,
    /// What it must be weakened to; `None` where it must be given up.
    pub target: Option<LockType>,
}

/// What F_GETLEASE shows (fcntl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// A lease of this type.
    Held(LockType),
    /// No lease, or one that is being broken and must go: F_UNLCK.
    Unlocked,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) owner: Owner,
    pub(crate) taken_by: ProcessId,
    pub(crate) lock_type: LockType,
    pub(crate) is_delegation: bool,
    pub(crate) since: Time,
    /// Must be weakened to read by then; `Some(None)` is a break without limit.
    weaken_by: Option<Option<Time>>,
    /// Must go by then.
    remove_by: Option<Option<Time>>,
    /// The holder has not been told of the latest break.
    is_to_tell: bool,
    pub(crate) branch: u32,
}

impl Lease {
    pub(crate) fn is_breaking(&self) -> bool {
        self.weaken_by.is_some() || self.remove_by.is_some()
    }

    /// What will be left of it; its type where it is not being broken.
    pub(crate) fn target(&self) -> Option<LockType> {
        if self.remove_by.is_some() {
            None
        } else if self.weaken_by.is_some() {
            Some(LockType::Read)
        } else {
            Some(self.lock_type)
        }
    }

    pub(crate) fn info(&self) -> LockInfo {
        LockInfo {
            kind: if self.is_delegation {
                LockKind::Delegation
            } else {
                LockKind::Lease
            },
            lock_type: self.lock_type,
            range: Range::WHOLE,
            owner: self.owner.clone(),
            taken_by: self.taken_by,
        }
    }

    fn is_broken_by(&self, opener: &Owner, access: LockType, scope: BreakScope) -> bool {
        let is_meant = match scope {
            BreakScope::All => true,
            BreakScope::Leases => !self.is_delegation,
            BreakScope::Delegations => self.is_delegation,
        };
        is_meant
            && self.lock_type.excludes(access)
            && !(self.is_delegation && self.owner == *opener)
    }
}

impl<T> Locks<T> {
    /// Whether this waiting opener breaks this lease.
    pub(crate) fn breaks(&self, waiter: u32, lease: u32) -> bool {
        let waiter = &self.waiters[waiter];
        let request = &waiter.request;
        waiter.breaks.is_some_and(|scope| {
            self.leases[lease].is_broken_by(&request.owner, request.lock_type, scope)
        })
    }

    /// Notes a time told by a caller.
    ///
    /// # Errors
    /// `TimeRanBackwards`.
    pub(crate) fn note_time(&mut self, now: Time) -> Result<(), LockError> {
        if now < self.latest {
            return Err(LockError::TimeRanBackwards);
        }
        self.latest = now;
        Ok(())
    }

    pub(crate) fn set_lease(
        &mut self,
        owner: FileOwner,
        taken_by: ProcessId,
        lock_type: LockType,
        is_delegation: bool,
        openers: Openers,
        cx: &Context<'_>,
    ) -> Result<(), LockError> {
        self.expire_leases(cx)?;
        // An opener that waited for what is overdue goes before a new lease.
        self.settle(cx);
        let owner = Owner::from(owner);
        let is_forbidden = !is_delegation
            && match lock_type {
                LockType::Read => openers.writers > 0,
                LockType::Write => openers.others > 0,
            };
        if is_forbidden {
            return Err(LockError::LeaseUnavailable);
        }
        let mut own = NIL;
        for (id, lease) in self.leases.iter() {
            if lease.owner == owner && lease.is_delegation == is_delegation {
                own = id;
            } else if lock_type == LockType::Write || lease.remove_by.is_some() {
                return Err(LockError::LeaseUnavailable);
            }
        }
        if own != NIL {
            let lease = &mut self.leases[own];
            lease.lock_type = lock_type;
            if lock_type == LockType::Read {
                lease.weaken_by = None;
            }
            self.loosen_lease(own, false);
            return Ok(());
        }
        if self.leases.reserve(1).is_err() {
            return Err(LockError::NoMemory);
        }
        if let Some(limit) = cx.settings.locks_per_file
            && self.lock_count() >= limit
        {
            return Err(LockError::Limit(crate::error::LimitKind::LocksPerFile));
        }
        if let Some(ledger) = cx.ledger.filter(|_| cx.settings.is_limited) {
            ledger.book_locks(&owner, 1).map_err(LockError::Limit)?;
        }
        self.leases.insert(Lease {
            owner,
            taken_by,
            lock_type,
            is_delegation,
            since: cx.now,
            weaken_by: None,
            remove_by: None,
            is_to_tell: false,
            branch: NIL,
        });
        self.counters.acquisitions += 1;
        Ok(())
    }

    pub(crate) fn remove_lease(
        &mut self,
        owner: &Owner,
        is_delegation: bool,
        cx: &Context<'_>,
    ) -> Result<(), LockError> {
        self.expire_leases(cx)?;
        match self.find_lease(owner, is_delegation) {
            NIL => Err(LockError::NoLease),
            id => {
                self.drop_lease(id, cx);
                Ok(())
            }
        }
    }

    /// The lease of this owner, or `NIL`.
    fn find_lease(&self, owner: &Owner, is_delegation: bool) -> u32 {
        self.leases
            .iter()
            .find(|(_, lease)| lease.owner == *owner && lease.is_delegation == is_delegation)
            .map_or(NIL, |(id, _)| id)
    }

    /// What F_GETLEASE shows the owner.
    pub(crate) fn get_lease(
        &mut self,
        owner: &Owner,
        is_delegation: bool,
        cx: &Context<'_>,
    ) -> Result<LeaseState, LockError> {
        self.expire_leases(cx)?;
        Ok(match self.find_lease(owner, is_delegation) {
            NIL => LeaseState::Unlocked,
            id => match self.leases[id].target() {
                Some(lock_type) => LeaseState::Held(lock_type),
                None => LeaseState::Unlocked,
            },
        })
    }

    /// Drops every lease and delegation of the owner; whether there was one.
    pub(crate) fn drop_leases_of(&mut self, owner: &Owner, cx: &Context<'_>) {
        for is_delegation in [false, true] {
            let id = self.find_lease(owner, is_delegation);
            if id != NIL {
                self.drop_lease(id, cx);
            }
        }
    }

    pub(crate) fn drop_lease(&mut self, id: u32, cx: &Context<'_>) {
        self.loosen_lease(id, true);
        let lease = self.leases.remove(id);
        if let Some(ledger) = cx.ledger.filter(|_| cx.settings.is_limited) {
            // A decrease is never refused.
            let _ = ledger.book_locks(&lease.owner, -1);
        }
    }

    /// Starts to break every lease that such an open conflicts with; returns one
    /// of them, to wait beneath, or `NIL` if there is none.
    pub(crate) fn break_leases(
        &mut self,
        opener: &Owner,
        access: LockType,
        scope: BreakScope,
        deadline: Option<Time>,
    ) -> u32 {
        let mut first = NIL;
        for id in 0..self.leases.slots() {
            let Some(lease) = self.leases.get_mut(id) else {
                continue;
            };
            if !lease.is_broken_by(opener, access, scope) {
                continue;
            }
            if first == NIL {
                first = id;
            }
            match access {
                LockType::Write if lease.remove_by.is_none() => {
                    lease.remove_by = Some(deadline);
                    lease.is_to_tell = true;
                }
                LockType::Read if !lease.is_breaking() => {
                    lease.weaken_by = Some(deadline);
                    lease.is_to_tell = true;
                }
                _ => {}
            }
        }
        first
    }

    /// The lease that a waiting opener must still wait for.
    ///
    /// One that nobody broke for it, since it was taken after the opener came,
    /// has its break started like the others.
    pub(crate) fn lease_to_await(&mut self, waiter: u32, cx: &Context<'_>) -> Option<u32> {
        let found = self
            .leases
            .iter()
            .map(|(id, _)| id)
            .find(|&id| self.breaks(waiter, id))?;
        if !self.leases[found].is_breaking() {
            let waiter = &self.waiters[waiter];
            let scope = waiter.breaks?;
            let Request {
                owner, lock_type, ..
            } = waiter.request.clone();
            self.break_leases(&owner, lock_type, scope, cx.break_deadline());
        }
        Some(found)
    }

    /// Weakens and removes what is overdue at `cx.now`.
    pub(crate) fn expire_leases(&mut self, cx: &Context<'_>) -> Result<u32, LockError> {
        self.note_time(cx.now)?;
        let is_due = |by: Option<Option<Time>>| matches!(by, Some(Some(by)) if by <= cx.now);
        let mut expired = 0;
        for id in 0..self.leases.slots() {
            let Some(lease) = self.leases.get_mut(id) else {
                continue;
            };
            if is_due(lease.remove_by) {
                self.drop_lease(id, cx);
                expired += 1;
            } else if is_due(lease.weaken_by) {
                lease.lock_type = LockType::Read;
                lease.weaken_by = None;
                self.loosen_lease(id, false);
                expired += 1;
            }
        }
        Ok(expired)
    }

    /// When the next lease is overdue.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.leases
            .iter()
            .flat_map(|(_, lease)| [lease.weaken_by, lease.remove_by])
            .filter_map(|by| by.flatten())
            .min()
    }

    /// The next holder to be told of a break.
    pub(crate) fn next_break(&mut self) -> Option<LeaseBreak> {
        for id in 0..self.leases.slots() {
            if let Some(lease) = self.leases.get_mut(id).filter(|lease| lease.is_to_tell) {
                lease.is_to_tell = false;
                return Some(LeaseBreak {
                    owner: lease.owner.clone(),
                    taken_by: lease.taken_by,
                    target: lease.target(),
                });
            }
        }
        None
    }

    /// Panics unless what waits beneath leases is openers.
    pub(crate) fn check_leases(&self) {
        for (id, lease) in self.leases.iter() {
            for child in self.beneath(lease.branch) {
                assert_eq!(self.waiters[child].request.space, Space::Leases);
                assert_eq!(self.blocker_of(child), Some(Obstacle::Lease(id)));
            }
        }
    }
}
