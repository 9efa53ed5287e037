//! A file server that caches: it takes a lease, is told when another opens the file,
//! writes back what it has and gives the lease up. Under limits, and on a clock that
//! is moved by hand, so that what takes 45 seconds takes none here.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{
    BreakScope, CallbackId, Errno, FileId, LeaseBreak, LeaseState, Limits, LockError, LockManager,
    LockType, OpenFileId, Openers, PidIsId, ProcessId, Range, Started,
};

const SERVER: OpenFileId = OpenFileId(1);
const OPENER: OpenFileId = OpenFileId(2);

fn main() -> Result<(), LockError> {
    let told: Arc<Mutex<Vec<LeaseBreak>>> = Arc::default();
    let note = told.clone();
    let manager = LockManager::builder()
        .limits(Limits {
            locks_per_owner: Some(2),
            ..Limits::default()
        })
        .lease_break_time(Some(Duration::from_secs(45)))
        .on_lease_break(move |_file, lease_break| {
            note.lock().expect("not poisoned").push(lease_break.clone());
        })
        .manual_clock()
        .build();
    let file = manager.file(FileId::new(8, 131));

    // F_SETLEASE: only the server has the file open.
    let lease = file.lease(SERVER).taken_by(ProcessId(100));
    lease.set(LockType::Write, Openers::default())?;

    // Another opens it for reading. With O_NONBLOCK he is sent away, and the server is
    // told all the same; without it he waits.
    let opening = file.opening(OPENER, LockType::Read, BreakScope::All);
    let sent_away = opening.try_break().expect_err("the lease is in the way");
    assert_eq!(sent_away.errno(), Errno::EAGAIN);
    assert_eq!(told.lock().expect("not poisoned").len(), 1);
    let opened = Arc::new(Mutex::new(None));
    let outcome = opened.clone();
    let started = opening.wait_callback(CallbackId(1), move |result| {
        *outcome.lock().expect("not poisoned") = Some(result);
    })?;
    assert!(matches!(started, Started::Waiting(_)));

    // The server writes back and keeps a read lease, which is no longer in the way.
    lease.set(LockType::Read, Openers::default())?;
    assert_eq!(*opened.lock().expect("not poisoned"), Some(Ok(())));

    // A third opens it for writing. The server does not answer: time takes the lease.
    let writing = file.opening(OpenFileId(3), LockType::Write, BreakScope::All);
    let started = writing.wait_callback(CallbackId(2), |result| {
        println!("the writer may open: {result:?}");
    })?;
    assert!(matches!(started, Started::Waiting(_)));
    assert_eq!(
        lease.get()?,
        LeaseState::Unlocked,
        "what must be left of it"
    );
    manager.advance(Duration::from_secs(45));
    assert!(
        writing.try_break().is_ok(),
        "nothing is in the way any more"
    );

    // Limits: a third lock of one owner is ENOLCK, and the first two stay.
    let records = file.posix(ProcessId(7));
    for byte in [0, 2] {
        records.try_lock(LockType::Write, Range::byte(byte)?)?;
    }
    let refused = records.try_lock(LockType::Write, Range::byte(4)?);
    assert_eq!(refused.map_err(|error| error.errno()), Err(Errno::ENOLCK));

    print!("{}", manager.proc_locks(&PidIsId));
    Ok(())
}
