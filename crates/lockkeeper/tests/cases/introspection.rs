//! IN: what listings show, as text that tools for /proc/locks read.

use lockkeeper::{LockManager, Openers, PidIsId, RemoteOwner};

use crate::common::*;

#[test]
fn in_01_waiters_open_files_and_broken_leases_are_listed_as_the_kernel_does() {
    let records = Stage::with(LockManager::builder().manual_clock());
    assert_eq!(records.set(p(1), W, bytes(0, 99)), Ok(()));
    let _waiters = [
        records.wait(p(2), W, bytes(0, 9)),
        records.wait(p(3), W, bytes(5, 9)),
        records.wait(p(4), R, byte(7)),
        records.wait(p(5), W, bytes(50, 60)),
    ];
    let ofd = records.on(101);
    assert_eq!(ofd.set(o(1), R, from(7)), Ok(()));
    let lease = records.on(102);
    let holder = lease.file.lease(o(2)).taken_by(p(6));
    holder.set(R, Openers::default()).expect("alone");
    let _opener = lease.wait_open(p(7), W);
    assert_eq!(
        records.manager.proc_locks(&PidIsId),
        "1: POSIX  ADVISORY  WRITE 1 08:01:100 0 99\n\
         1: -> POSIX  ADVISORY  WRITE 2 08:01:100 0 9\n\
         1:  -> POSIX  ADVISORY  WRITE 3 08:01:100 5 9\n\
         1:   -> POSIX  ADVISORY  READ 4 08:01:100 7 7\n\
         1: -> POSIX  ADVISORY  WRITE 5 08:01:100 50 60\n\
         2: OFDLCK ADVISORY  READ -1 08:01:101 7 EOF\n\
         3: LEASE  BREAKING  UNLCK 6 08:01:102 0 EOF\n\
         3: -> LEASE  BREAKER   WRITE 7 <none>:0 0 EOF\n"
    );
}

#[test]
fn in_02_an_active_lease_is_a_line_of_its_own_kind() {
    let stage = Stage::linux();
    let holder = stage.file.lease(o(1)).taken_by(p(4711));
    holder.set(R, Openers::default()).expect("alone");
    stage.check();
    assert_eq!(
        stage.manager.proc_locks(&PidIsId),
        "1: LEASE  ACTIVE    READ 4711 08:01:100 0 EOF\n"
    );
}

#[test]
fn in_05_the_locks_of_remote_owners_are_listed() {
    let stage = Stage::linux();
    let client = RemoteOwner::new(b"host/7", -7);
    let flock = stage.file.flock(client.clone());
    flock.try_lock(W).expect("free");
    stage.check();
    assert_eq!(stage.set(client, R, bytes(1, 2)), Ok(()));
    assert_eq!(
        stage.manager.proc_locks(&PidIsId),
        "1: POSIX  ADVISORY  READ -7 08:01:100 1 2\n\
         2: FLOCK  ADVISORY  WRITE -7 08:01:100 0 EOF\n"
    );
}
