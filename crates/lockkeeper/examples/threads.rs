//! Threads that wait for locks, as processes do with fcntl(2): one is granted,
//! one closes a deadlock, one gives up in time, one is interrupted.

use std::thread;
use std::time::Duration;

use lockkeeper::{
    Errno, FileId, Interrupt, LockError, LockManager, LockType, ProcessId, Range, WaitOptions,
};

fn main() -> Result<(), LockError> {
    let manager = LockManager::new();
    let file = manager.file(FileId::new(8, 131));
    let (header, body) = (Range::new(0, 99)?, Range::from_offset(100)?);
    let (alice, bob) = (file.posix(ProcessId(1)), file.posix(ProcessId(2)));

    alice.lock(LockType::Write, header)?;
    bob.lock(LockType::Write, body)?;
    println!("alice has {header}, bob has {body}");

    let refused = bob
        .try_lock(LockType::Read, header)
        .expect_err("alice has it");
    println!("bob tries the header: {} ({refused})", refused.errno());
    assert_eq!(refused.errno(), Errno::EAGAIN);

    thread::scope(|scope| {
        // Alice waits for bob. If bob now waited for alice, neither could go on.
        let waiter = scope.spawn(|| alice.lock(LockType::Write, body));
        while file.snapshot().waiting.is_empty() {
            thread::yield_now();
        }
        let refused = bob.lock(LockType::Write, header).expect_err("a deadlock");
        println!("bob waits for the header: {}", refused.errno());
        assert_eq!(refused.errno(), Errno::EDEADLK);

        bob.unlock(body)?;
        println!("bob gives the body up");
        waiter.join().expect("no panic")
    })?;
    println!("alice has all of the file now");
    assert_eq!(file.snapshot().granted.len(), 1);

    let patience = WaitOptions {
        timeout: Some(Duration::from_millis(10)),
        ..WaitOptions::default()
    };
    let late = bob
        .lock_with(LockType::Read, body, patience)
        .expect_err("too late");
    println!("bob waits for 10 ms: {}", late.errno());
    assert_eq!(late.errno(), Errno::ETIMEDOUT);

    // Another thread may end a wait, as a signal does.
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let options = WaitOptions {
                interrupt: Some(&interrupt),
                ..WaitOptions::default()
            };
            bob.lock_with(LockType::Read, body, options)
        });
        while interrupt.interrupt().is_err() {
            thread::yield_now();
        }
        let ended = waiter.join().expect("no panic").expect_err("a signal");
        println!("bob is interrupted: {}", ended.errno());
        assert_eq!(ended.errno(), Errno::EINTR);
    });
    Ok(())
}
