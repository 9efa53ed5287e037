//! A vector of slots with a free list: the table's only way to keep anything.
//!
//! Everything that grows in the table is a slab, so every allocation is one
//! `reserve` that can fail before anything has changed, and every link between
//! locks, waiters and tree nodes is a 32-bit index instead of a pointer.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// "No slot": the end of a list, an empty tree.
pub(crate) const NIL: u32 = u32::MAX;

#[derive(Debug)]
enum Slot<N> {
    Used(N),
    Free(u32),
}

#[derive(Debug)]
pub(crate) struct Slab<N> {
    slots: Vec<Slot<N>>,
    free: u32,
    used: u32,
}

/// Memory ran out, or 2^32 - 1 slots are in use.
#[derive(Debug)]
pub(crate) struct Full;

impl<N> Slab<N> {
    pub(crate) const fn new() -> Slab<N> {
        Slab {
            slots: Vec::new(),
            free: NIL,
            used: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.used
    }

    /// Makes room for `count` more, so that as many `insert`s cannot fail.
    ///
    /// Grows by a quarter, a large one by an eighth or, of large nodes, by a
    /// sixteenth, not by doubling: the slots are what a lock costs.
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) -> Result<(), Full> {
        let room = self.slots.capacity() - self.used as usize;
        if room >= count as usize {
            return Ok(());
        }
        self.grow(count as usize)
    }

    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), Full> {
        let len = self.slots.len();
        if len + count >= NIL as usize {
            return Err(Full);
        }
        let share = match len {
            ..1024 => len / 4,
            _ if size_of::<N>() < 128 => len / 8,
            _ => len / 16,
        };
        let more = count.max(share).max(4);
        self.slots
            .try_reserve_exact(more)
            .or_else(|_| self.slots.try_reserve_exact(count))
            .map_err(|_| Full)
    }

    #[inline]
    pub(crate) fn insert(&mut self, node: N) -> u32 {
        self.used += 1;
        if self.free != NIL {
            let id = self.free;
            let slot = &mut self.slots[id as usize];
            if let Slot::Free(next) = *slot {
                self.free = next;
            }
            *slot = Slot::Used(node);
            id
        } else {
            debug_assert!(self.slots.len() < self.slots.capacity(), "no room reserved");
            self.slots.push(Slot::Used(node));
            (self.slots.len() - 1) as u32
        }
    }

    /// Drops a node where it is.
    #[inline]
    pub(crate) fn free(&mut self, id: u32) {
        self.slots[id as usize] = Slot::Free(self.free);
        self.free = id;
        self.used -= 1;
    }

    pub(crate) fn remove(&mut self, id: u32) -> N {
        let slot = core::mem::replace(&mut self.slots[id as usize], Slot::Free(self.free));
        self.free = id;
        self.used -= 1;
        match slot {
            Slot::Used(node) => node,
            Slot::Free(_) => missing(),
        }
    }

    /// Gives back the memory of a crowd that has gone. For when nothing is in
    /// use and nothing has been reserved.
    pub(crate) fn shrink(&mut self) {
        debug_assert_eq!(self.used, 0);
        if self.slots.len() > 64 {
            *self = Slab::new();
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&N> {
        match self.slots.get(id as usize) {
            Some(Slot::Used(node)) => Some(node),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut N> {
        match self.slots.get_mut(id as usize) {
            Some(Slot::Used(node)) => Some(node),
            _ => None,
        }
    }

    /// One more than the greatest id in use.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &N)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(id, slot)| match slot {
                Slot::Used(node) => Some((id as u32, node)),
                Slot::Free(_) => None,
            })
    }
}

impl<N> Index<u32> for Slab<N> {
    type Output = N;

    #[inline]
    fn index(&self, id: u32) -> &N {
        match &self.slots[id as usize] {
            Slot::Used(node) => node,
            Slot::Free(_) => missing(),
        }
    }
}

impl<N> IndexMut<u32> for Slab<N> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut N {
        match &mut self.slots[id as usize] {
            Slot::Used(node) => node,
            Slot::Free(_) => missing(),
        }
    }
}

/// A link to a slot that is free. No input leads here: links are made and cut
/// by the table alone, and `check_invariants` follows every one of them.
#[cold]
fn missing() -> ! {
    unreachable!("a link of the lock table leads to a free slot")
}
