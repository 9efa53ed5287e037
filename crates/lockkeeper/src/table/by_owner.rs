//! Which waiters belong to an owner: a hash table of the oldest of each owner,
//! with the others in a ring behind it, by arrival.
//!
//! A tree would do, but to join a queue of 10,000 and to leave it must cost what
//! it costs with 10, and the depth of a tree, each step another cache line, does
//! not.

use core::hash::BuildHasher;

use super::locks::{Locks, Space};
use crate::avl::Links;
use crate::owner::Owner;
use crate::slab::{Full, NIL};

impl<T> Locks<T> {
    /// Makes room for one more waiter of a new owner.
    pub(crate) fn reserve_owner(&mut self, space: Space) -> Result<(), Full> {
        let (hasher, waiters) = (&self.hasher, &self.waiters);
        self.waiting[space as usize]
            .owners
            .try_reserve(1, |&id| hasher.hash_one(&waiters[id].request.owner))
            .map_err(|_| Full)
    }

    /// Adds the youngest waiter of a space; room was made.
    pub(crate) fn enter_owner(&mut self, id: u32) {
        let (hasher, waiters) = (&self.hasher, &self.waiters);
        let request = &waiters[id].request;
        let hash = hasher.hash_one(&request.owner);
        let owners = &mut self.waiting[request.space as usize].owners;
        let oldest = owners.find(hash, |&oldest| {
            waiters[oldest].request.owner == request.owner
        });
        match oldest.copied() {
            None => {
                owners.insert_unique(hash, id, |&id| hasher.hash_one(&waiters[id].request.owner));
                self.waiters[id].own = Links {
                    left: id,
                    right: id,
                };
            }
            Some(oldest) => {
                let youngest = self.waiters[oldest].own.left;
                self.waiters[id].own = Links {
                    left: youngest,
                    right: oldest,
                };
                self.waiters[youngest].own.right = id;
                self.waiters[oldest].own.left = id;
            }
        }
    }

    /// Takes a waiter out again.
    pub(crate) fn leave_owner(&mut self, id: u32) {
        let Links { left, right } = self.waiters[id].own;
        let (hasher, waiters) = (&self.hasher, &self.waiters);
        let request = &waiters[id].request;
        let hash = hasher.hash_one(&request.owner);
        let owners = &mut self.waiting[request.space as usize].owners;
        if let Ok(mut entry) = owners.find_entry(hash, |&oldest| oldest == id) {
            if right == id {
                entry.remove();
                return;
            }
            *entry.get_mut() = right;
        }
        self.waiters[left].own.right = right;
        self.waiters[right].own.left = left;
    }

    /// The owner's oldest waiter in the space, or `NIL`.
    pub(crate) fn first_wait_of(&self, space: Space, owner: &Owner) -> u32 {
        let owners = &self.waiting[space as usize].owners;
        if owners.is_empty() {
            return NIL;
        }
        let hash = self.hasher.hash_one(owner);
        owners
            .find(hash, |&oldest| self.waiters[oldest].request.owner == *owner)
            .map_or(NIL, |&oldest| oldest)
    }

    /// The owner's waiters in the space, by arrival.
    pub(crate) fn waits_of(&self, space: Space, owner: &Owner) -> impl Iterator<Item = u32> {
        let oldest = self.first_wait_of(space, owner);
        let mut next = oldest;
        core::iter::from_fn(move || {
            let id = next;
            (id != NIL).then(|| {
                let after = self.waiters[id].own.right;
                next = if after == oldest { NIL } else { after };
                id
            })
        })
    }

    /// Whether the owner has exactly one waiter in the space.
    pub(crate) fn waits_once(&self, space: Space, owner: &Owner) -> bool {
        let oldest = self.first_wait_of(space, owner);
        oldest != NIL && self.waiters[oldest].own.right == oldest
    }

    /// Panics unless the index has exactly the waiters of the space.
    pub(crate) fn check_owners(&self, space: Space) {
        let waiting = &self.waiting[space as usize];
        let mut listed = 0;
        for &oldest in &waiting.owners {
            let mut previous = None;
            for id in self.waits_of(space, &self.waiters[oldest].request.owner) {
                listed += 1;
                let waiter = &self.waiters[id];
                assert_eq!(waiter.request.space, space);
                assert!(
                    previous < Some(waiter.arrival),
                    "an owner's waits out of order"
                );
                previous = Some(waiter.arrival);
            }
        }
        assert_eq!(listed, waiting.count, "waiters lost from their owner");
    }
}
