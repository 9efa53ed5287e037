//! LS: leases, and what an open that breaks them has to wait for.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::table::{LeaseBreak, Waits};
use lockkeeper::{Errno, LeaseState, LockManager, LockType, OpenFileId, Openers};

use crate::common::*;

const EAGAIN: Result = Err(Errno::EAGAIN);
/// Nobody else has the file open.
const ALONE: Openers = Openers {
    writers: 0,
    others: 0,
};

/// A stage whose time is moved by hand, and the breaks that holders were told of.
struct Leases {
    stage: Stage,
    told: Arc<Mutex<Vec<LeaseBreak>>>,
}

impl Leases {
    fn new() -> Leases {
        let told = Arc::new(Mutex::new(Vec::new()));
        let note = told.clone();
        let builder =
            LockManager::builder()
                .manual_clock()
                .on_lease_break(move |_, lease_break| {
                    note.lock().expect("not poisoned").push(lease_break.clone());
                });
        Leases {
            stage: Stage::with(builder),
            told,
        }
    }

    fn set(&self, owner: OpenFileId, lock_type: LockType, openers: Openers) -> Result {
        let result = errno(self.stage.file.lease(owner).set(lock_type, openers));
        self.stage.check();
        result
    }

    fn unlock(&self, owner: OpenFileId) -> Result {
        let result = errno(self.stage.file.lease(owner).unlock());
        self.stage.check();
        result
    }

    fn get(&self, owner: OpenFileId) -> LeaseState {
        let state = self.stage.file.lease(owner).get().expect("time goes on");
        self.stage.check();
        state
    }

    fn advance(&self, seconds: u64) {
        self.stage.manager.advance(Duration::from_secs(seconds));
        self.stage.check();
    }

    /// Who was told of a break since the last call, and what must be left.
    fn told(&self) -> Vec<(u64, Option<LockType>)> {
        let told = std::mem::take(&mut *self.told.lock().expect("not poisoned"));
        let numbers = told.into_iter().map(|lease_break| {
            let lockkeeper::Owner::OpenFile(OpenFileId(number)) = lease_break.owner else {
                panic!("no open file: {lease_break:?}");
            };
            (number, lease_break.target)
        });
        numbers.collect()
    }
}

#[test]
fn ls_01_the_break_of_a_read_lease_keeps_no_reader_out() {
    let leases = Leases::new();
    let stage = &leases.stage;
    assert_eq!(leases.set(o(1), R, ALONE), Ok(()));
    assert_eq!(stage.open(o(2), W), EAGAIN);
    assert_eq!(leases.told(), [(1, None)], "one signal");
    assert_eq!(stage.open(o(3), R), Ok(()));
    let writer = stage.wait_open(o(3), W);
    assert_eq!(writer.outcome(), WAITS);
    // It counts as an opener for writing while it waits.
    let openers = Openers {
        writers: 1,
        others: 2,
    };
    assert_eq!(leases.set(o(1), R, openers), EAGAIN);
    assert_eq!(leases.told(), [], "told already");
    assert_eq!(leases.unlock(o(1)), Ok(()));
    assert_eq!(writer.outcome(), GRANTED);
}

#[test]
fn ls_04_an_overdue_write_lease_is_weakened_for_a_reader_and_goes_for_a_writer() {
    for access in [R, W] {
        let leases = Leases::new();
        let stage = &leases.stage;
        assert_eq!(leases.set(o(1), W, ALONE), Ok(()));
        let opener = stage.wait_open(o(2), access);
        leases.advance(44);
        assert_eq!(opener.outcome(), WAITS);
        leases.advance(1);
        assert_eq!(opener.outcome(), GRANTED, "45 s, as Linux");
        assert_eq!(stage.held(), if access == R { "o1:lR" } else { "" });
        assert_eq!(
            stage
                .file
                .snapshot()
                .granted
                .first()
                .and_then(|l| l.breaking),
            None
        );
    }
}

#[test]
fn ls_05_a_break_that_nobody_waits_for_ends_by_itself() {
    let leases = Leases::new();
    assert_eq!(leases.set(o(1), R, ALONE), Ok(()));
    assert_eq!(leases.stage.open(o(2), W), EAGAIN);
    leases.advance(46);
    assert_eq!(leases.get(o(1)), LeaseState::Unlocked);
    assert_eq!(leases.stage.held(), "", "the timer has removed it");
    assert_eq!(leases.stage.open(o(2), W), Ok(()));
}

#[test]
fn ls_07_an_opener_waits_for_every_lease_and_a_close_ends_one() {
    let leases = Leases::new();
    let stage = &leases.stage;
    assert_eq!(leases.set(o(1), R, ALONE), Ok(()));
    assert_eq!(leases.set(o(2), R, ALONE), Ok(()));
    let opener = stage.wait_open(o(3), W);
    assert_eq!(leases.told(), [(1, None), (2, None)]);
    assert_eq!(leases.unlock(o(1)), Ok(()));
    assert_eq!(opener.outcome(), WAITS);
    assert_eq!(leases.unlock(o(2)), Ok(()));
    assert_eq!(opener.outcome(), GRANTED);

    // A truncation is an opener for writing. The lease goes when the last
    // duplicate of its descriptor is closed, which is when the owner does.
    assert_eq!(leases.set(o(1), W, ALONE), Ok(()));
    let truncation = stage.wait_open(p(9), W);
    assert_eq!(truncation.outcome(), WAITS);
    stage.close(o(1), Waits::Interrupt);
    assert_eq!(truncation.outcome(), GRANTED);
    stage.assert_empty();
}
