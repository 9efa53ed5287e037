//! The operations that a test or a fuzzer runs on a table, and how bytes mean them.

use std::fmt;

use lockkeeper::table::{BreakScope, Openers, Waits};
use lockkeeper::{
    Fairness, FileOwner, LockType, OFFSET_MAX, OpenFileId, Owner, ProcessId, Range, RemoteOwner,
};

/// The bytes that one [`Step`] is made of.
pub type Word = [u8; 7];

/// What holds for a whole run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub fairness: Fairness,
    pub locks_per_file: Option<u32>,
    pub waiters_per_file: Option<u32>,
    /// A ledger's limits of locks and of waiters of one owner.
    pub per_owner: Option<(u32, u32)>,
}

impl Setup {
    /// No limits.
    pub fn new(fairness: Fairness) -> Setup {
        Setup {
            fairness,
            locks_per_file: None,
            waiters_per_file: None,
            per_owner: None,
        }
    }

    pub fn limits_locks(&self) -> bool {
        self.locks_per_file.is_some() || self.per_owner.is_some()
    }

    pub fn from_bytes([fairness, limits]: [u8; 2]) -> Setup {
        let few = u32::from(limits >> 3) % 8;
        Setup {
            fairness: fairness_from(fairness),
            locks_per_file: matches!(limits & 7, 5 | 7).then_some(few + 1),
            waiters_per_file: matches!(limits & 7, 5 | 6).then_some(few),
            per_owner: (limits & 7 >= 6).then_some((few / 2 + 1, few / 2)),
        }
    }
}

/// One operation, and what the caller fetches after it.
#[derive(Clone)]
pub struct Step {
    pub op: Op,
    pub fetch: Fetch,
}

impl fmt::Debug for Step {
    /// On one line, however deep it stands in what is printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.op)?;
        for (fetches, name) in [
            (self.fetch.ended, "ended"),
            (self.fetch.offers, "offers"),
            (self.fetch.breaks, "breaks"),
        ] {
            if !fetches {
                write!(f, ", {name} lie")?;
            }
        }
        Ok(())
    }
}

/// Which results a caller comes for at once; the others lie until later.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub ended: bool,
    pub offers: bool,
    pub breaks: bool,
}

impl Fetch {
    pub const ALL: Fetch = Fetch {
        ended: true,
        offers: true,
        breaks: true,
    };
}

impl From<Op> for Step {
    fn from(op: Op) -> Step {
        Step {
            op,
            fetch: Fetch::ALL,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    /// `try_lock`.
    Try(Ask),
    /// `lock`.
    Wait(Ask),
    /// `lock_by_offer`.
    WaitForOffer(Ask),
    Unlock(u8, Range),
    UnlockFlock(u8),
    /// Every query there is, about such a request and its owner.
    Look(Ask),
    Claim(Pick),
    Cancel(Pick),
    RefuseDeadlock(Pick),
    LetPass(Pick),
    Release(u8, Waits),
    TearDown,
    SetFairness(Option<Fairness>),
    SetLease(u8, LockType, bool, Openers),
    RemoveLease(u8, bool),
    GetLease(u8, bool),
    TryBreak(u8, LockType, BreakScope),
    Break(u8, LockType, BreakScope),
    Expire,
    /// Seconds go by, or back.
    Pass(i8),
}

/// A request. Owners are numbers, see [`owner`] and [`file_owner`].
#[derive(Clone, Debug)]
pub enum Ask {
    Record(u8, LockType, Range),
    /// By owner, type, and the process that makes it.
    Flock(u8, LockType, u8),
    Access(u8, LockType, Range),
}

/// Which waiter is meant: the n-th of these, counted round and round.
#[derive(Clone, Copy, Debug)]
pub enum Pick {
    Live(u8),
    Offered(u8),
    /// Any that ever was, most of which are gone.
    Ever(u8),
    /// An id from another table.
    Foreign,
}

/// Owner of record locks number `n`: processes, open files, remote clients.
pub fn owner(n: u8) -> Owner {
    match (n, n % 3) {
        (0..=2, _) => ProcessId(1 + u64::from(n)).into(),
        (3..=5, _) => OpenFileId(u64::from(n)).into(),
        (6..=7, _) => remote(n).into(),
        // Of crowds.
        (_, 0) => remote(n).into(),
        (_, 1) => ProcessId(u64::from(n)).into(),
        _ => OpenFileId(u64::from(n)).into(),
    }
}

/// Owner of flocks and leases number `n`; each owns record locks too.
pub fn file_owner(n: u8) -> FileOwner {
    match n {
        0..=2 => OpenFileId(u64::from(n) + 3).into(),
        3..=4 => remote(n + 3).into(),
        // Of crowds.
        _ => OpenFileId(u64::from(n)).into(),
    }
}

/// A new value each time, since a server makes one for each message.
fn remote(n: u8) -> RemoteOwner {
    RemoteOwner::new(&[b'c', n], -i32::from(n))
}

pub fn fairness_from(byte: u8) -> Fairness {
    match byte % 8 {
        0..=2 => Fairness::Unlimited,
        3 | 4 => Fairness::FIFO,
        5 => Fairness::Bounded(1),
        6 => Fairness::Bounded(3),
        _ => Fairness::default(),
    }
}

/// A small space: twelve first bytes and the last four there are.
fn offset_from(byte: u8) -> u64 {
    match byte % 16 {
        n @ 0..=11 => u64::from(n),
        n => OFFSET_MAX - u64::from(15 - n),
    }
}

/// Short ranges mostly, and some that reach far.
fn range_from(first: u8, second: u8) -> Range {
    let a = offset_from(first);
    let b = if second < 160 {
        (a + u64::from(second % 5)).min(OFFSET_MAX)
    } else {
        offset_from(second)
    };
    Range::new(a.min(b), a.max(b)).expect("in order")
}

impl Step {
    /// A step of a crowd: many owners, few kinds of requests, and most wait.
    pub fn of_crowd(word: Word) -> Step {
        let [kind, who, first, second, more, fetch, which] = word;
        let (start, len) = (u64::from(first % 4) * 2, u64::from(second % 3) * 4);
        let range = Range::new(start, start + len).expect("in order");
        let lock_type = if more % 4 == 0 {
            LockType::Read
        } else {
            LockType::Write
        };
        let ask = match which % 16 {
            0..=13 => Ask::Record(who, lock_type, range),
            14 => Ask::Access(who, lock_type, range),
            _ => Ask::Flock(who, lock_type, 0),
        };
        let op = match kind % 32 {
            0..=11 => Op::Wait(ask),
            12..=23 => Op::WaitForOffer(ask),
            24 => Op::Try(ask),
            25 => Op::Cancel(Pick::Live(who)),
            26..=28 => Op::Claim(Pick::Offered(who)),
            29 => Op::Unlock(who, range),
            _ => Op::Release(who, Waits::Keep),
        };
        Step {
            op,
            fetch: Fetch {
                ended: fetch % 4 != 0,
                ..Fetch::ALL
            },
        }
    }

    /// A step that lets a crowd go: whoever holds something, or waits, leaves.
    pub fn of_dispersal(word: Word) -> Step {
        let [kind, who, ..] = word;
        let op = match kind % 8 {
            0..=2 => Op::Release(who, Waits::Keep),
            3 => Op::Cancel(Pick::Live(who)),
            4 => Op::Release(who, Waits::Interrupt),
            5 => Op::LetPass(Pick::Live(who)),
            _ => Op::Claim(Pick::Offered(who)),
        };
        op.into()
    }

    pub fn from_word(word: Word) -> Step {
        let [kind, who, first, second, more, fetch, which] = word;
        let lock_type = if more & 1 == 0 {
            LockType::Write
        } else {
            LockType::Read
        };
        let range = range_from(first, second);
        let ask = match which % 16 {
            0..=10 => Ask::Record(who % 8, lock_type, range),
            11..=13 => Ask::Flock(who % 5, lock_type, second % 2),
            _ => Ask::Access(who % 8, lock_type, range),
        };
        let pick = match which % 8 {
            0..=2 => Pick::Live(first),
            3..=5 => Pick::Offered(first),
            6 => Pick::Ever(first),
            _ if first % 4 == 0 => Pick::Foreign,
            _ => Pick::Live(first),
        };
        let is_delegation = more & 2 != 0;
        let scope = match (more >> 2) % 4 {
            0 => BreakScope::Leases,
            1 => BreakScope::Delegations,
            _ => BreakScope::All,
        };
        let op = match kind % 64 {
            0..=11 => Op::Try(ask),
            12..=19 => Op::Wait(ask),
            20..=29 => Op::WaitForOffer(ask),
            30..=35 => Op::Unlock(who % 8, range),
            36 | 37 => Op::Unlock(who % 8, Range::WHOLE),
            38 | 39 => Op::UnlockFlock(who % 5),
            40 => Op::Look(ask),
            41..=45 => Op::Claim(match pick {
                Pick::Live(n) => Pick::Offered(n),
                other => other,
            }),
            46 | 47 => Op::Cancel(pick),
            48 => Op::RefuseDeadlock(pick),
            49 => Op::LetPass(pick),
            50 | 51 => Op::Release(
                who % 8,
                match more % 3 {
                    0 => Waits::Keep,
                    1 => Waits::Close,
                    _ => Waits::Interrupt,
                },
            ),
            52 if first % 8 == 0 => Op::TearDown,
            52 => Op::Try(ask),
            53 => Op::SetFairness((first % 4 != 0).then(|| fairness_from(second))),
            54 | 55 => Op::SetLease(
                who % 5,
                lock_type,
                is_delegation,
                Openers {
                    writers: u32::from(first % 4 == 3),
                    others: u32::from(second % 4 == 3),
                },
            ),
            56 => Op::RemoveLease(who % 5, is_delegation),
            57 => Op::GetLease(who % 5, is_delegation),
            58 => Op::TryBreak(who % 8, lock_type, scope),
            59 | 60 => Op::Break(who % 8, lock_type, scope),
            61 => Op::Expire,
            _ => Op::Pass(if first % 8 == 7 {
                -((second % 3) as i8)
            } else {
                (second % 12) as i8
            }),
        };
        Step {
            op,
            fetch: Fetch {
                ended: fetch & 3 != 3,
                offers: fetch & 12 != 12,
                breaks: fetch & 48 != 48,
            },
        }
    }
}
