//! Locks of one file by place, so that one in the way of a request is found without looking at each.
//!
//! They are the leaves of a binary tree, by their first byte. A node knows how far the locks below it reach: the one
//! that reaches furthest, and the one that does so among those of other owners than that one's. With these two it is
//! known whether any lock below a node reaches a byte and belongs to another owner than the one who asks, whoever asks.
//! To find one, or to take one away, costs the logarithm of their number.

/// A lock to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive.
    pub end: u64,
    /// Whose it is.
    pub owner: u64,
    /// What is returned when it is found.
    pub number: usize,
}

/// How far somebody's locks reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    end: u64,
    owner: u64,
}

/// The furthest, and the furthest of other owners.
type Reaches = [Option<Reach>; 2];

/// The locks.
#[derive(Debug)]
pub(crate) struct InTheWay {
    /// By their first byte.
    locks: Vec<Placed>,
    /// The children of node `n` are `2n` and `2n + 1`, the root is 1; the last `width` are the leaves.
    nodes: Vec<Reaches>,
    /// A power of two, not less than the number of locks.
    width: usize,
}

/// What is looked for.
struct Wanted {
    /// Only locks before this place begin early enough.
    before: usize,
    start: u64,
    owner: u64,
}

impl InTheWay {
    /// Of these locks. Whoever takes one away names it by its place in `self.locks()`.
    pub(crate) fn new(mut locks: Vec<Placed>) -> InTheWay {
        locks.sort_unstable_by_key(|lock| lock.start);
        let width = locks.len().next_power_of_two();
        let mut nodes = vec![Reaches::default(); 2 * width];
        for (leaf, &Placed { end, owner, .. }) in nodes[width..].iter_mut().zip(&locks) {
            leaf[0] = Some(Reach { end, owner });
        }
        for node in (1..width).rev() {
            nodes[node] = further(nodes[2 * node], nodes[2 * node + 1]);
        }
        InTheWay {
            locks,
            nodes,
            width,
        }
    }

    /// The locks by their places, also those that were taken away.
    pub(crate) fn locks(&self) -> &[Placed] {
        &self.locks
    }

    /// Takes the lock at this place away.
    pub(crate) fn remove(&mut self, place: usize) {
        let mut node = self.width + place;
        self.nodes[node] = Reaches::default();
        while node > 1 {
            node /= 2;
            self.nodes[node] = further(self.nodes[2 * node], self.nodes[2 * node + 1]);
        }
    }

    /// The number of a lock of another owner that covers a byte from `start` to `end`: any, as chance has it.
    pub(crate) fn find(
        &self,
        start: u64,
        end: u64,
        owner: u64,
        chance: &mut Chance,
    ) -> Option<usize> {
        let wanted = Wanted {
            before: self.locks.partition_point(|lock| lock.start <= end),
            start,
            owner,
        };
        let place = self.below(1, 0, self.width, &wanted, chance)?;
        Some(self.locks[place].number)
    }

    /// The same below a node, whose leaves are `width` from `first` on. It goes as deep as the tree is high, 64 at most;
    /// and in vain only where some of the leaves are before `wanted.before` and some are not, which is one path.
    fn below(
        &self,
        node: usize,
        first: usize,
        width: usize,
        wanted: &Wanted,
        chance: &mut Chance,
    ) -> Option<usize> {
        let mut reaches = self.nodes[node].iter().flatten();
        let is_hopeless = first >= wanted.before
            || !reaches.any(|reach| reach.owner != wanted.owner && reach.end >= wanted.start);
        if is_hopeless {
            return None;
        }
        if width == 1 {
            return Some(first);
        }
        let half = width / 2;
        let mut sides = [(2 * node, first), (2 * node + 1, first + half)];
        if chance.flip() {
            sides.reverse();
        }
        let mut found = sides
            .into_iter()
            .map(|(node, first)| self.below(node, first, half, wanted, chance));
        found.find_map(|place| place)
    }
}

/// The two furthest of different owners.
fn further(a: Reaches, b: Reaches) -> Reaches {
    let mut all = a.into_iter().chain(b).flatten();
    let Some(mut best) = all.next() else {
        return Reaches::default();
    };
    let mut second: Option<Reach> = None;
    for reach in all {
        if reach.owner == best.owner {
            best.end = best.end.max(reach.end);
        } else if reach.end > best.end {
            second = Some(best);
            best = reach;
        } else if second.is_none_or(|second| reach.end > second.end) {
            second = Some(reach);
        }
    }
    [Some(best), second]
}

/// Flips coins, the same ones each time.
#[derive(Debug, Default)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The output of splitmix64.
    fn flip(&mut self) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Locks at places that chance chooses, of few owners, so that much overlaps.
    fn scattered(count: usize, seed: u64) -> Vec<Placed> {
        let mut chance = Chance(seed);
        let mut number = |bits| (0..bits).fold(0, |all, _| all << 1 | u64::from(chance.flip()));
        let one = |index| {
            let (start, length) = (number(6), number(3));
            Placed {
                start,
                end: start + length,
                owner: number(2),
                number: index,
            }
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn exactly_what_is_in_the_way_is_found_until_it_is_taken_away() {
        for seed in 0..200 {
            let mut index = InTheWay::new(scattered(seed as usize % 40, seed));
            let mut left: HashSet<usize> = index.locks().iter().map(|lock| lock.number).collect();
            let mut chance = Chance(seed);
            let places: Vec<(usize, Placed)> = index.locks().iter().copied().enumerate().collect();
            for (place, lock) in places {
                for request in scattered(20, seed + 1000) {
                    let is_in_the_way = |lock: &&Placed| {
                        left.contains(&lock.number)
                            && lock.owner != request.owner
                            && lock.start <= request.end
                            && lock.end >= request.start
                    };
                    let all: Vec<usize> = index
                        .locks()
                        .iter()
                        .filter(is_in_the_way)
                        .map(|lock| lock.number)
                        .collect();
                    let Placed {
                        start, end, owner, ..
                    } = request;
                    match index.find(start, end, owner, &mut chance) {
                        Some(found) => assert!(all.contains(&found), "{request:?}"),
                        None => assert_eq!(all, [0; 0], "{request:?}"),
                    }
                }
                index.remove(place);
                left.remove(&lock.number);
            }
        }
    }

    #[test]
    fn chance_leaves_nobody_out() {
        let locks = (0..8).map(|number| Placed {
            start: 0,
            end: 9,
            owner: number as u64,
            number,
        });
        let index = InTheWay::new(locks.collect());
        let mut chance = Chance::default();
        let found: HashSet<usize> = (0..1000)
            .filter_map(|_| index.find(0, 0, 7, &mut chance))
            .collect();
        assert_eq!(found, HashSet::from_iter(0..7));
    }
}
