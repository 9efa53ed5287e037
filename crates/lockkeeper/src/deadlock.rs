//! Finding a cycle of owners that wait for each other.
//!
//! # The graph
//! An owner waits for another if one of its requests waits for a lock of the
//! other, on any file. A request waits for *every* lock that it conflicts with,
//! so an owner in a cycle can never go on until somebody else in the cycle gives
//! up: one edge each is enough for a deadlock, and every edge is looked at. That
//! finds cycles which Linux misses: past ten hops, and through another holder
//! than the one that a request happens to hang beneath.
//!
//! Only POSIX requests are refused. The cycle may go through waits of open file
//! descriptions for record locks, as Linux finds it in some orders; a cycle that
//! such a wait closes stands until somebody ends it.
//!
//! Threads of a process are one owner. As in Linux, a cycle through two threads
//! of a process is refused although a third might unlock what is needed.
//!
//! # When to look
//! A cycle can only be closed where an edge appears: when a request begins to
//! wait, and when a lock is granted that waiting requests conflict with, to an
//! owner that waits elsewhere itself (it has several threads, or is a client
//! with several requests). Moving a waiter in the tree adds no edge. The request
//! whose edge closes the cycle is the one to refuse.
//!
//! # Queueing for fairness
//! A request that queues behind another only because of the fairness bound waits
//! for something that it does not need. A cycle through such an edge is no
//! deadlock but a reason to let that request pass.

use alloc::vec::Vec;
use hashbrown::HashSet;

use crate::owner::Owner;
pub use crate::table::Edge;

/// Where to look who waits for whom.
pub trait WaitGraph {
    /// Names a waiting request.
    type Wait: Clone;

    /// Calls `visit` with everybody that this request waits for, until it
    /// returns false.
    fn blockers(&mut self, wait: &Self::Wait, visit: &mut dyn FnMut(&Owner, Edge) -> bool);

    /// Calls `visit` with every request of this owner that waits.
    fn waits_of(&mut self, owner: &Owner, visit: &mut dyn FnMut(Self::Wait));
}

/// One step of a cycle: the request that waits, and for whom.
#[derive(Clone, Debug)]
pub struct Step<W> {
    /// The request.
    pub wait: W,
    /// Whom it waits for; the owner of the next step's request.
    pub waits_for: Owner,
    /// Because of a lock, or of the fairness bound.
    pub edge: Edge,
}

/// The shortest cycle through `start`, a waiting request of `owner`; its steps in
/// order from `start` on, the last of which waits for `owner`. `None` if there
/// is none.
///
/// Without `through_queues`, edges made by fairness alone are not followed.
/// Takes time in proportion to the edges within reach, whatever the depth.
pub fn find_cycle<G: WaitGraph>(
    graph: &mut G,
    start: &G::Wait,
    owner: &Owner,
    through_queues: bool,
) -> Option<Vec<Step<G::Wait>>> {
    /// An owner that `start`'s owner waits for, and how it was reached.
    struct Reached<W> {
        step: Step<W>,
        from: Option<usize>,
    }
    let mut seen: HashSet<Owner> = HashSet::new();
    let mut reached: Vec<Reached<G::Wait>> = Vec::new();
    let mut waits: Vec<G::Wait> = alloc::vec![start.clone()];
    let mut next = 0;
    let mut from = None;
    loop {
        for wait in waits.drain(..) {
            let mut closes = false;
            graph.blockers(&wait, &mut |blocker, edge| {
                if edge == Edge::Queue && !through_queues {
                    return true;
                }
                closes = blocker == owner;
                if closes || seen.insert(blocker.clone()) {
                    reached.push(Reached {
                        step: Step {
                            wait: wait.clone(),
                            waits_for: blocker.clone(),
                            edge,
                        },
                        from,
                    });
                }
                !closes
            });
            if closes {
                let mut cycle = Vec::new();
                let mut at = reached.len() - 1;
                loop {
                    cycle.push(reached[at].step.clone());
                    match reached[at].from {
                        Some(from) => at = from,
                        None => break,
                    }
                }
                cycle.reverse();
                return Some(cycle);
            }
        }
        let node = reached.get(next)?;
        from = Some(next);
        next += 1;
        graph.waits_of(&node.step.waits_for, &mut |wait| waits.push(wait));
    }
}

/// A request within reach of `start` that queues for fairness alone and is in a
/// cycle; `None` if there is none. The shortest cycle may be one of locks alone
/// that nobody is refused for, and hide a longer one through a queue.
pub fn find_queue_in_cycle<G: WaitGraph>(
    graph: &mut G,
    start: &G::Wait,
    owner: &Owner,
) -> Option<G::Wait> {
    let mut seen: HashSet<Owner> = HashSet::new();
    seen.insert(owner.clone());
    let mut reached = alloc::vec![(start.clone(), owner.clone())];
    while let Some((wait, owner)) = reached.pop() {
        let mut queues = false;
        let mut blockers = Vec::new();
        graph.blockers(&wait, &mut |blocker, edge| {
            queues |= edge == Edge::Queue;
            if seen.insert(blocker.clone()) {
                blockers.push(blocker.clone());
            }
            true
        });
        if queues && find_cycle(graph, &wait, &owner, true).is_some() {
            return Some(wait);
        }
        for blocker in blockers {
            graph.waits_of(&blocker, &mut |wait| reached.push((wait, blocker.clone())));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::ProcessId;

    /// Requests are pairs of the waiting and the blocking process.
    struct Pairs(Vec<(u64, u64)>);

    impl WaitGraph for Pairs {
        type Wait = (u64, u64);

        fn blockers(&mut self, wait: &(u64, u64), visit: &mut dyn FnMut(&Owner, Edge) -> bool) {
            visit(&ProcessId(wait.1).into(), Edge::Lock);
        }

        fn waits_of(&mut self, owner: &Owner, visit: &mut dyn FnMut((u64, u64))) {
            for &pair in &self.0 {
                if *owner == ProcessId(pair.0).into() {
                    visit(pair);
                }
            }
        }
    }

    #[test]
    fn a_cycle_is_found_exactly_where_there_is_one() {
        // (who waits for whom, the request that came last, length of its cycle)
        type Case = (&'static [(u64, u64)], (u64, u64), Option<usize>);
        let cases: &[Case] = &[
            (&[(1, 2)], (1, 2), None),
            (&[(1, 2), (2, 1)], (2, 1), Some(2)),
            (&[(1, 2), (2, 3), (3, 1)], (3, 1), Some(3)),
            // A cycle elsewhere is nobody's business, and the search ends.
            (&[(1, 2), (2, 3), (3, 2)], (1, 2), None),
            // Through the second of two waits of one owner.
            (&[(1, 9), (1, 2), (2, 1)], (2, 1), Some(2)),
            // A diamond without a cycle.
            (&[(1, 2), (1, 3), (2, 4), (3, 4)], (1, 2), None),
        ];
        for (pairs, last, want) in cases {
            let mut graph = Pairs(pairs.to_vec());
            let cycle = find_cycle(&mut graph, last, &ProcessId(last.0).into(), false);
            assert_eq!(cycle.map(|cycle| cycle.len()), *want, "{pairs:?}");
        }
    }
}
