//! The granted record locks and flocks of one file.
//!
//! # How they are kept
//! Every granted lock is a [`Record`] in one slab and stands in two trees:
//!
//! - *by place*, ordered by first byte, with the greatest last byte of each
//!   subtree: "who is in the way of these bytes" is an interval search. Reads
//!   and writes have a tree each, so that a reader never walks over readers.
//! - *by owner*, then first byte: "what do I hold here" is a binary search,
//!   since one owner's locks never overlap.
//!
//! A space with at most [`FEW`] locks has no trees: they are listed, and looked
//! through. That is what most contended files are like, and what makes a lock
//! that others wait for nearly as cheap as one that nobody wants.
//!
//! Record locks and flocks share the slab but are separate [`Space`]s with
//! lists and trees of their own: they never conflict (flock(2)).
//!
//! # Invariants
//! 1. Locks of one owner in one space do not overlap, and two that touch are of
//!    different types.
//! 2. Locks of different owners in one space that overlap are both reads.
//!
//! # The cases of a change
//! A set or an unlock of range `N` meets each own lock `O` that overlaps it (or,
//! for a set of the same type, touches it) in one of these ways, named by number
//! wherever they are handled:
//!
//! ```text
//!   (1) same type           O: ....ooooo...    joined: N grows over O
//!                           N: ......nnnnn.
//!   (2) O inside N          O: ....ooo.....    O goes
//!                           N: ..nnnnnnn...
//!   (3) O reaches out left  O: .oooooo.....    O keeps its left part
//!                           N: ....nnnnn...
//!   (4) O reaches out right O: ......oooooo    O keeps its right part
//!                           N: ...nnnnn....
//!   (5) N inside O          O: .ooooooooooo    O keeps its left part, a new
//!                           N: ....nnnnn...    record takes the right part
//! ```
//!
//! Whatever a record loses in (1) to (5) is told to the requests that wait
//! beneath it, see [`waiting`](super::waiting).

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::locks::{Context, Locks, Request, Space};
use crate::avl::{self, Links, Order};
use crate::error::{LimitKind, LockError};
use crate::lock::{LockInfo, LockKind, LockType, Time};
use crate::owner::{Owner, ProcessId};
use crate::range::Range;
use crate::slab::{NIL, Slab};

/// A granted lock.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) range: Range,
    pub(crate) owner: Owner,
    pub(crate) taken_by: ProcessId,
    pub(crate) since: Time,
    /// The greatest last byte in the subtree by place.
    max_end: u64,
    place: Links,
    own: Links,
    /// The requests directly beneath, or `NIL`.
    pub(crate) branch: u32,
    place_height: u8,
    own_height: u8,
    pub(crate) lock_type: LockType,
    pub(crate) space: Space,
}

impl Record {
    /// Whether a request of `owner` must wait for this lock.
    pub(crate) fn is_in_the_way(&self, owner: &Owner, range: Range, lock_type: LockType) -> bool {
        self.range.overlaps(range) && self.lock_type.excludes(lock_type) && self.owner != *owner
    }

    pub(crate) fn info(&self) -> LockInfo {
        LockInfo {
            kind: match self.space {
                Space::Records => LockKind::of_record(&self.owner),
                Space::Flocks | Space::Leases => LockKind::Flock,
            },
            lock_type: self.lock_type,
            range: self.range,
            owner: self.owner.clone(),
            taken_by: self.taken_by,
        }
    }
}

/// By first byte; the slot breaks ties.
pub(crate) struct ByPlace;

impl Order for ByPlace {
    type Node = Record;

    fn links(node: &Record) -> &Links {
        &node.place
    }
    fn links_mut(node: &mut Record) -> &mut Links {
        &mut node.place
    }
    fn height(node: &Record) -> u8 {
        node.place_height
    }
    fn set_height(node: &mut Record, height: u8) {
        node.place_height = height;
    }
    fn compare(a: (u32, &Record), b: (u32, &Record)) -> Ordering {
        (a.1.range.start(), a.0).cmp(&(b.1.range.start(), b.0))
    }
    fn summarize(nodes: &mut Slab<Record>, id: u32) {
        let Links { left, right } = nodes[id].place;
        let mut max_end = nodes[id].range.end();
        for child in [left, right] {
            if child != NIL {
                max_end = max_end.max(nodes[child].max_end);
            }
        }
        nodes[id].max_end = max_end;
    }
    fn summarize_leaf(node: &mut Record) {
        node.max_end = node.range.end();
    }
}

/// By owner, then first byte.
pub(crate) struct ByOwner;

impl Order for ByOwner {
    type Node = Record;

    fn links(node: &Record) -> &Links {
        &node.own
    }
    fn links_mut(node: &mut Record) -> &mut Links {
        &mut node.own
    }
    fn height(node: &Record) -> u8 {
        node.own_height
    }
    fn set_height(node: &mut Record, height: u8) {
        node.own_height = height;
    }
    fn compare(a: (u32, &Record), b: (u32, &Record)) -> Ordering {
        (&a.1.owner, a.1.range.start()).cmp(&(&b.1.owner, b.1.range.start()))
    }
}

/// So many locks of a space are listed; with more, trees are grown.
const FEW: usize = 4;

/// The granted locks of one space.
#[derive(Debug)]
pub(crate) struct Granted {
    /// All of them, the first `count`, unless there are trees.
    listed: [u32; FEW],
    has_trees: bool,
    pub(crate) count: u32,
    /// Trees by place, of reads and of writes.
    place: [u32; 2],
    own: u32,
}

impl Granted {
    pub(crate) const NONE: Granted = Granted {
        listed: [NIL; FEW],
        has_trees: false,
        count: 0,
        place: [NIL; 2],
        own: NIL,
    };

    /// The locks of a space without trees.
    #[inline]
    fn list(&self) -> &[u32] {
        &self.listed[..(self.count as usize).min(FEW)]
    }
}

/// What a set or an unlock would do to the number of records.
struct Plan {
    added: u32,
    removed: u32,
}

impl<T> Locks<T> {
    /// The granted lock that stands in the way of such a request: of several the
    /// one with the lowest first byte. `NIL` if it could be granted.
    #[inline]
    pub(crate) fn first_conflict(
        &self,
        space: Space,
        owner: &Owner,
        range: Range,
        lock_type: LockType,
    ) -> u32 {
        let granted = &self.granted[space as usize];
        if granted.has_trees {
            return self.first_conflict_in_trees(granted.place, owner, range, lock_type);
        }
        let mut first = NIL;
        for &id in granted.list() {
            let record = &self.records[id];
            if record.is_in_the_way(owner, range, lock_type)
                && (first == NIL || record.range.start() < self.records[first].range.start())
            {
                first = id;
            }
        }
        first
    }

    fn first_conflict_in_trees(
        &self,
        [reads, writes]: [u32; 2],
        owner: &Owner,
        range: Range,
        lock_type: LockType,
    ) -> u32 {
        let write = self.first_overlap(writes, range, owner);
        if lock_type == LockType::Read {
            return write;
        }
        let read = self.first_overlap(reads, range, owner);
        match (read, write) {
            (NIL, other) | (other, NIL) => other,
            _ if self.records[read].range.start() < self.records[write].range.start() => read,
            _ => write,
        }
    }

    fn first_overlap(&self, root: u32, range: Range, owner: &Owner) -> u32 {
        if root == NIL {
            return NIL;
        }
        let record = &self.records[root];
        if record.max_end < range.start() {
            return NIL;
        }
        let left = self.first_overlap(record.place.left, range, owner);
        if left != NIL {
            return left;
        }
        if record.range.start() > range.end() {
            return NIL;
        }
        if record.range.end() >= range.start() && record.owner != *owner {
            return root;
        }
        self.first_overlap(record.place.right, range, owner)
    }

    /// Every granted lock in the way of such a request, by first byte, until
    /// `visit` returns false.
    pub(crate) fn visit_conflicts(
        &self,
        space: Space,
        owner: &Owner,
        range: Range,
        lock_type: LockType,
        visit: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        let granted = &self.granted[space as usize];
        if !granted.has_trees {
            return granted
                .list()
                .iter()
                .all(|&id| !self.records[id].is_in_the_way(owner, range, lock_type) || visit(id));
        }
        let [reads, writes] = granted.place;
        self.visit_overlaps(writes, range, owner, visit)
            && (lock_type == LockType::Read || self.visit_overlaps(reads, range, owner, visit))
    }

    fn visit_overlaps(
        &self,
        root: u32,
        range: Range,
        owner: &Owner,
        visit: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        if root == NIL || self.records[root].max_end < range.start() {
            return true;
        }
        let record = &self.records[root];
        self.visit_overlaps(record.place.left, range, owner, visit)
            && (record.range.start() > range.end()
                || (!record.range.overlaps(range) || record.owner == *owner || visit(root))
                    && self.visit_overlaps(record.place.right, range, owner, visit))
    }

    /// The owner's first lock that ends at or after `end` and starts at or after
    /// `start`; `NIL` if there is none.
    #[inline]
    fn own_from(&self, space: Space, owner: &Owner, end: u64, start: u64) -> u32 {
        let granted = &self.granted[space as usize];
        if granted.has_trees {
            return self.own_from_in_tree(granted.own, owner, end, start);
        }
        let mut first = NIL;
        for &id in granted.list() {
            let record = &self.records[id];
            if record.range.end() >= end
                && record.range.start() >= start
                && record.owner == *owner
                && (first == NIL || record.range.start() < self.records[first].range.start())
            {
                first = id;
            }
        }
        first
    }

    fn own_from_in_tree(&self, root: u32, owner: &Owner, end: u64, start: u64) -> u32 {
        let found = avl::first::<ByOwner>(&self.records, root, |record| {
            match record.owner.cmp(owner) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => record.range.end() >= end && record.range.start() >= start,
            }
        });
        if found != NIL && self.records[found].owner == *owner {
            found
        } else {
            NIL
        }
    }

    /// A lock of this owner on one of these bytes, or `NIL`.
    pub(crate) fn own_overlap(&self, space: Space, owner: &Owner, range: Range) -> u32 {
        let found = self.own_from(space, owner, range.start(), 0);
        if found != NIL && self.records[found].range.overlaps(range) {
            found
        } else {
            NIL
        }
    }

    /// Every lock of this owner on one of these bytes, by first byte.
    fn own_overlaps(
        &self,
        space: Space,
        owner: &Owner,
        range: Range,
    ) -> impl Iterator<Item = &Record> {
        let mut start = 0;
        core::iter::from_fn(move || {
            let record = match self.own_from(space, owner, range.start(), start) {
                NIL => return None,
                found => &self.records[found],
            };
            start = record.range.end() + 1;
            record.range.overlaps(range).then_some(record)
        })
    }

    /// Whether the owner holds a lock that excludes such a request of another.
    pub(crate) fn own_excludes(
        &self,
        space: Space,
        owner: &Owner,
        range: Range,
        lock_type: LockType,
    ) -> bool {
        self.own_overlaps(space, owner, range)
            .any(|record| record.lock_type.excludes(lock_type))
    }

    /// What the owner of a request for a record lock holds of its bytes, by first
    /// byte. Nothing for other requests, or where there is no memory to say it.
    pub(crate) fn held_of(&self, request: &Request) -> Vec<(Range, LockType)> {
        let Request { owner, range, .. } = request;
        let mut held = Vec::new();
        if request.space == Space::Records && !request.is_access {
            for record in self.own_overlaps(Space::Records, owner, *range) {
                if held.try_reserve(1).is_ok() {
                    held.push((record.range.within(*range), record.lock_type));
                }
            }
        }
        held
    }

    /// Every granted lock of the space, in no particular order.
    pub(crate) fn visit_granted(&self, space: Space, visit: &mut dyn FnMut(u32)) {
        if !self.granted[space as usize].has_trees {
            self.granted[space as usize]
                .list()
                .iter()
                .for_each(|&id| visit(id));
        }
        for root in self.granted[space as usize].place {
            avl::walk::<ByPlace>(&self.records, root, visit);
        }
    }

    fn plan(&self, space: Space, owner: &Owner, range: Range, set: Option<LockType>) -> Plan {
        let (low, high) = reach(range, set);
        let mut plan = Plan {
            added: u32::from(set.is_some()),
            removed: 0,
        };
        let mut start = 0;
        loop {
            let id = self.own_from(space, owner, low, start);
            if id == NIL || self.records[id].range.start() > high {
                return plan;
            }
            let record = &self.records[id];
            let joins = set == Some(record.lock_type);
            if joins || range.contains(record.range) {
                plan.removed += 1; // (1), (2)
            } else if record.range.start() < range.start() && record.range.end() > range.end() {
                plan.added += 1; // (5)
            }
            start = record.range.end() + 1;
        }
    }

    /// Makes the owner hold `range` as `lock_type`, where nothing is in the way;
    /// returns the record that now covers it. Requests that waited for what this
    /// weakened are pending afterwards.
    ///
    /// # Errors
    /// `Limit` or `NoMemory`; then nothing has changed.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        space: Space,
        owner: &Owner,
        taken_by: ProcessId,
        range: Range,
        lock_type: LockType,
        cx: &Context<'_>,
    ) -> Result<u32, LockError> {
        self.make_room(space, owner, range, Some(lock_type), cx)?;
        let mut joined = range;
        let mut kept = NIL;
        self.carve(space, owner, range, Some(lock_type), |locks, id| {
            joined = joined.join(locks.records[id].range);
            if kept == NIL {
                kept = id;
            } else {
                // As old as its oldest part.
                let since = locks.records[id].since.min(locks.records[kept].since);
                locks.records[kept].since = since;
                locks.drop_record(id);
            }
        });
        if kept == NIL {
            return Ok(self.insert_record(space, owner, taken_by, range, lock_type, cx.now));
        }
        if self.records[kept].range != joined {
            self.resize(kept, joined);
        }
        Ok(kept)
    }

    /// Makes the owner hold nothing of `range`. Requests that waited for it are
    /// pending afterwards.
    ///
    /// # Errors
    /// `Limit` or `NoMemory` where the unlock splits a lock and there may be no
    /// further record; then nothing has changed.
    #[inline]
    pub(crate) fn unhold(
        &mut self,
        space: Space,
        owner: &Owner,
        range: Range,
        cx: &Context<'_>,
    ) -> Result<(), LockError> {
        self.make_room(space, owner, range, None, cx)?;
        self.carve(space, owner, range, None, |_, _| {});
        Ok(())
    }

    /// Checks limits and memory for the change, and books it with the ledger.
    #[inline]
    fn make_room(
        &mut self,
        space: Space,
        owner: &Owner,
        range: Range,
        set: Option<LockType>,
        cx: &Context<'_>,
    ) -> Result<(), LockError> {
        if self.records.reserve(2).is_err() {
            // Room for fewer may do, but only a plan can tell.
            let plan = self.plan(space, owner, range, set);
            if plan.added > plan.removed {
                return Err(LockError::NoMemory);
            }
        }
        if !cx.settings.is_limited {
            return Ok(());
        }
        let plan = self.plan(space, owner, range, set);
        let delta = i64::from(plan.added) - i64::from(plan.removed);
        if delta > 0
            && let Some(limit) = cx.settings.locks_per_file
            && self.lock_count() as i64 + delta > i64::from(limit)
        {
            return Err(LockError::Limit(LimitKind::LocksPerFile));
        }
        match cx.ledger {
            Some(ledger) if delta != 0 => ledger.book_locks(owner, delta).map_err(LockError::Limit),
            _ => Ok(()),
        }
    }

    /// Cuts `range` out of the owner's locks, cases (2) to (5), and hands those
    /// of case (1), which are still in place, to `join`.
    #[inline]
    fn carve(
        &mut self,
        space: Space,
        owner: &Owner,
        range: Range,
        set: Option<LockType>,
        mut join: impl FnMut(&mut Locks<T>, u32),
    ) {
        let (low, high) = reach(range, set);
        let mut start = 0;
        loop {
            let id = self.own_from(space, owner, low, start);
            if id == NIL || self.records[id].range.start() > high {
                return;
            }
            let old = self.records[id].range;
            start = old.end() + 1;
            if set == Some(self.records[id].lock_type) {
                join(self, id); // (1)
            } else if old.overlaps(range) {
                match (old.before(range), old.after(range)) {
                    (None, None) => self.drop_record(id),                     // (2)
                    (Some(left), None) => self.shrink(id, left),              // (3)
                    (None, Some(right)) => self.shrink(id, right),            // (4)
                    (Some(left), Some(right)) => self.split(id, left, right), // (5)
                }
            }
        }
    }

    #[inline]
    fn insert_record(
        &mut self,
        space: Space,
        owner: &Owner,
        taken_by: ProcessId,
        range: Range,
        lock_type: LockType,
        since: Time,
    ) -> u32 {
        let id = self.records.insert(Record {
            range,
            owner: owner.clone(),
            taken_by,
            since,
            max_end: range.end(),
            place: Links::NONE,
            own: Links::NONE,
            branch: NIL,
            place_height: 0,
            own_height: 0,
            lock_type,
            space,
        });
        let granted = &mut self.granted[space as usize];
        let count = granted.count as usize;
        granted.count += 1;
        if !granted.has_trees && count < FEW {
            granted.listed[count] = id;
        } else {
            self.plant(space, id);
        }
        id
    }

    /// Puts a record into the trees, which are grown from the list if there are
    /// none yet.
    #[cold]
    fn plant(&mut self, space: Space, id: u32) {
        let granted = &mut self.granted[space as usize];
        let listed = granted.listed;
        let is_first = !core::mem::replace(&mut granted.has_trees, true);
        let others = listed.iter().filter(|_| is_first);
        for &id in others.chain([&id]) {
            let place = &mut granted.place[self.records[id].lock_type as usize];
            *place = avl::insert::<ByPlace>(&mut self.records, *place, id);
            granted.own = avl::insert::<ByOwner>(&mut self.records, granted.own, id);
        }
    }

    /// Takes a record out of the trees; the trees go when half of what fits a
    /// list is left, so that a file at the border does not change with each lock.
    #[cold]
    fn uproot(&mut self, space: Space, id: u32) {
        let granted = &mut self.granted[space as usize];
        let place = &mut granted.place[self.records[id].lock_type as usize];
        *place = avl::remove::<ByPlace>(&mut self.records, *place, id);
        granted.own = avl::remove::<ByOwner>(&mut self.records, granted.own, id);
        if granted.count as usize <= FEW / 2 {
            let mut listed = granted.listed.iter_mut();
            avl::walk::<ByOwner>(&self.records, granted.own, &mut |id| {
                if let Some(slot) = listed.next() {
                    *slot = id;
                }
            });
            granted.has_trees = false;
            granted.place = [NIL; 2];
            granted.own = NIL;
        }
    }

    /// Takes over a lock that the table kept in itself.
    pub(crate) fn insert_held(&mut self, held: super::Held) {
        let super::Held {
            range,
            owner,
            taken_by,
            since,
            lock_type,
            space,
            ..
        } = held;
        self.insert_record(space, &owner, taken_by, range, lock_type, since);
    }

    /// The owner of some lock in the space.
    pub(crate) fn any_holder(&self, space: Space) -> Option<Owner> {
        let granted = &self.granted[space as usize];
        let any = match granted.has_trees {
            true => granted.own,
            false => granted.list().first().copied().unwrap_or(NIL),
        };
        (any != NIL).then(|| self.records[any].owner.clone())
    }

    /// Case (2): the record goes, and every request beneath it is pending.
    #[inline]
    fn drop_record(&mut self, id: u32) {
        self.loosen_record(id, None);
        let space = self.records[id].space;
        let granted = &mut self.granted[space as usize];
        granted.count -= 1;
        if granted.has_trees {
            self.uproot(space, id);
        } else {
            let count = granted.count as usize;
            if let Some(at) = granted.listed.iter().position(|&listed| listed == id) {
                granted.listed[at] = granted.listed[count.min(FEW - 1)];
            }
        }
        self.records.free(id);
    }

    /// Cases (3) and (4): what no longer conflicts with the rest is pending.
    fn shrink(&mut self, id: u32, rest: Range) {
        self.resize(id, rest);
        self.loosen_record(id, Some(rest));
    }

    /// Case (5).
    fn split(&mut self, id: u32, left: Range, right: Range) {
        self.shrink(id, left);
        let Record {
            space,
            taken_by,
            lock_type,
            since,
            ..
        } = self.records[id];
        let owner = self.records[id].owner.clone();
        self.insert_record(space, &owner, taken_by, right, lock_type, since);
    }

    /// Changes the bytes of a record whose place among its owner's locks stays.
    fn resize(&mut self, id: u32, range: Range) {
        let Record {
            space, lock_type, ..
        } = self.records[id];
        if !self.granted[space as usize].has_trees {
            self.records[id].range = range;
            return;
        }
        let root = self.granted[space as usize].place[lock_type as usize];
        let root = avl::remove::<ByPlace>(&mut self.records, root, id);
        self.records[id].range = range;
        let root = avl::insert::<ByPlace>(&mut self.records, root, id);
        self.granted[space as usize].place[lock_type as usize] = root;
    }

    /// Locks of both spaces and leases.
    pub(crate) fn lock_count(&self) -> u32 {
        self.granted[0].count + self.granted[1].count + self.leases.len()
    }

    /// Panics unless the invariants of this module hold.
    pub(crate) fn check_granted(&self) {
        for space in [Space::Records, Space::Flocks] {
            let granted = &self.granted[space as usize];
            if granted.has_trees {
                self.check_trees(space);
            } else {
                assert_eq!(
                    (granted.place, granted.own),
                    ([NIL; 2], NIL),
                    "trees forgotten"
                );
                assert!(granted.count as usize <= FEW, "too many for a list");
            }
            let mut own = Vec::new();
            self.visit_granted(space, &mut |id| own.push(&self.records[id]));
            assert_eq!(own.len(), granted.count as usize, "records lost");
            own.sort_by_key(|record| (&record.owner, record.range));
            for pair in own.windows(2).filter(|pair| pair[0].owner == pair[1].owner) {
                assert!(
                    !pair[0].range.overlaps(pair[1].range),
                    "an owner's locks overlap"
                );
                assert!(
                    pair[0].lock_type != pair[1].lock_type || !pair[0].range.touches(pair[1].range),
                    "touching locks of one owner and type were not joined"
                );
            }
            for record in own {
                assert_eq!(record.space, space);
                let conflict =
                    self.first_conflict(space, &record.owner, record.range, record.lock_type);
                assert_eq!(conflict, NIL, "conflicting locks granted");
                if space == Space::Flocks {
                    assert_eq!(record.range, Range::WHOLE, "a flock with a range");
                }
            }
        }
        assert_eq!(
            self.records.len(),
            self.granted[0].count + self.granted[1].count
        );
    }

    fn check_trees(&self, space: Space) {
        let granted = &self.granted[space as usize];
        let mut count = 0;
        for lock_type in [LockType::Read, LockType::Write] {
            let root = granted.place[lock_type as usize];
            count += avl::check::<ByPlace>(&self.records, root);
            avl::walk::<ByPlace>(&self.records, root, &mut |id| {
                let record = &self.records[id];
                assert_eq!((record.lock_type, record.space), (lock_type, space));
                let mut max_end = record.range.end();
                for child in [record.place.left, record.place.right] {
                    if child != NIL {
                        max_end = max_end.max(self.records[child].max_end);
                    }
                }
                assert_eq!(record.max_end, max_end, "wrong greatest end");
            });
        }
        assert_eq!(count, granted.count, "records lost");
        assert_eq!(avl::check::<ByOwner>(&self.records, granted.own), count);
    }
}

/// The first and last byte at which an own lock matters: a set looks one byte
/// further, for neighbours of its type to join.
fn reach(range: Range, set: Option<LockType>) -> (u64, u64) {
    match set {
        Some(_) => (range.start().saturating_sub(1), range.end() + 1),
        None => (range.start(), range.end()),
    }
}
