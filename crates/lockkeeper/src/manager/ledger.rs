//! Counts for the limits that span files. Used only where such a limit is set:
//! they are shared, and cost every lock what sharing costs.

use hashbrown::HashMap;

use crate::error::LimitKind;
use crate::lock::Limits;
use crate::owner::Owner;
use crate::sync::{Mutex, lock};
use crate::table::Ledger;

#[derive(Default)]
struct Account {
    locks: i64,
    waiters: i64,
}

#[derive(Default)]
struct Accounts {
    total: Account,
    owners: HashMap<Owner, Account>,
}

pub(crate) struct Accounting {
    limits: Limits,
    accounts: Mutex<Accounts>,
}

impl Accounting {
    pub(crate) fn new(limits: Limits) -> Accounting {
        Accounting {
            limits,
            accounts: Mutex::new(Accounts::default()),
        }
    }

    fn book(
        &self,
        owner: &Owner,
        delta: i64,
        count: impl Fn(&mut Account) -> &mut i64,
        (per_owner, owner_kind): (Option<u32>, LimitKind),
        (in_all, all_kind): (Option<u32>, LimitKind),
    ) -> Result<(), LimitKind> {
        let passes = |count: i64, limit: Option<u32>| {
            delta > 0 && limit.is_some_and(|limit| count + delta > i64::from(limit))
        };
        let accounts = &mut *lock(&self.accounts);
        let total = count(&mut accounts.total);
        if passes(*total, in_all) {
            return Err(all_kind);
        }
        let before = accounts
            .owners
            .get_mut(owner)
            .map_or(0, |account| *count(account));
        if passes(before, per_owner) {
            return Err(owner_kind);
        }
        let account = accounts.owners.entry(owner.clone()).or_default();
        *total += delta;
        *count(account) += delta;
        if account.locks == 0 && account.waiters == 0 {
            accounts.owners.remove(owner);
        }
        Ok(())
    }
}

impl Ledger for Accounting {
    fn book_locks(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind> {
        self.book(
            owner,
            delta,
            |account| &mut account.locks,
            (self.limits.locks_per_owner, LimitKind::LocksPerOwner),
            (self.limits.locks_in_all, LimitKind::LocksInAll),
        )
    }

    fn book_waiters(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind> {
        self.book(
            owner,
            delta,
            |account| &mut account.waiters,
            (self.limits.waiters_per_owner, LimitKind::WaitersPerOwner),
            (self.limits.waiters_in_all, LimitKind::WaitersInAll),
        )
    }
}
