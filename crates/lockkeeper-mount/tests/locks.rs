//! Locks on a real mount: that each reaches the lock manager with the right owner, kind and order, and
//! that closing, killing and interrupting leave nothing. What a lock manager decides is not tested here.

mod support;

use std::time::{Duration, Instant};

use support::TestMount;
use support::client::{Client, client_main};

/// Not a test: the other side of [`Client`].
#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn client() {
    client_main();
}

fn client_with(mount: &TestMount, name: &str, file: &str) -> Client {
    let mut client = Client::start();
    let path = mount.path(file);
    assert_eq!(client.ask(&format!("open {name} {}", path.display())), "ok");
    client
}

fn nothing_left(mount: &TestMount) {
    mount.wait_for("leftovers", |mount| {
        let counts = mount.counts();
        mount.listing().is_empty()
            && (counts.lock_processes, counts.lock_handles, counts.waiting) == (0, 0, 0)
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_12_two_processes_exclude_each_other_and_getlk_names_the_holder() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    assert_eq!(p.ask("posix w f 0 10"), "ok");
    assert_eq!(q.ask("posix w f 5 1"), "AGAIN");
    assert_eq!(q.ask("get w f 5 1"), format!("w 0 10 {}", p.pid()));
    assert_eq!(
        q.ask("oget w f 5 1"),
        "w 0 10 -1",
        "the kernel shows no process to an OFD query"
    );
    assert_eq!(q.ask("posix w f 10 0"), "ok");
    assert_eq!(
        p.ask("get w f 0 0"),
        format!("w 10 0 {}", q.pid()),
        "to the end is length 0"
    );
    assert_eq!(q.ask("posix u f 0 0"), "ok");
    assert_eq!(
        q.ask("posix w f 5 1"),
        "AGAIN",
        "one's unlock leaves the other's lock"
    );
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_01_ofd_locks_end_with_their_description() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    for start in [100, 101, 103, 201, 203] {
        assert_eq!(p.ask(&format!("ofd r f {start} 1")), "ok");
    }
    assert_eq!(q.ask("ofd w f 100 104"), "AGAIN");
    assert_eq!(q.ask("oget w f 103 1"), "r 103 1 -1");
    // A duplicate keeps the description, and so the locks.
    assert_eq!(p.ask("dup f g"), "ok");
    assert_eq!(p.ask("close f"), "ok");
    assert_eq!(q.ask("ofd w f 100 104"), "AGAIN");
    assert_eq!(p.ask("close g"), "ok");
    assert_eq!(
        q.ask("oget w f 100 104"),
        "free",
        "RELEASE is served before the next request"
    );
    assert_eq!(q.ask("ofd w f 100 104"), "ok");
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_02_a_shared_handle_drops_only_what_is_its_own() {
    let mount = TestMount::new();
    let (mut p, mut q) = (
        client_with(&mount, "one", "x"),
        client_with(&mount, "f", "x"),
    );
    assert_eq!(p.ask("posix w one 0 0"), "ok");
    assert_eq!(p.ask("fork"), "ok");
    assert_eq!(p.ask("close one"), "ok");
    assert_eq!(
        q.ask("get w f 0 0"),
        "free",
        "closing drops the process's locks"
    );
    let path = mount.path("x");
    assert_eq!(p.ask(&format!("open two {}", path.display())), "ok");
    assert_eq!(p.ask("posix w two 0 0"), "ok");
    // The child, which shares both handles, goes.
    assert_eq!(p.ask("reap"), "ok");
    assert_eq!(q.ask("posix w f 0 0"), "AGAIN");
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn closing_any_descriptor_drops_all_record_locks_of_the_process_on_that_file() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    for name in ["x", "y"] {
        assert_eq!(
            p.ask(&format!("open other-{name} {}", mount.path(name).display())),
            "ok"
        );
    }
    assert_eq!(
        q.ask(&format!("open y {}", mount.path("y").display())),
        "ok"
    );
    assert_eq!(p.ask("posix w f 0 1"), "ok");
    assert_eq!(p.ask("posix w other-y 0 1"), "ok");
    assert_eq!(p.ask("close other-x"), "ok");
    assert_eq!(
        q.ask("posix w f 0 1"),
        "ok",
        "another descriptor of the file was closed"
    );
    assert_eq!(
        q.ask("posix w y 0 1"),
        "AGAIN",
        "the other file's lock stands"
    );
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_13_flock_and_record_locks_are_two_worlds() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    assert_eq!(p.ask("flock w f"), "ok");
    assert_eq!(q.ask("posix w f 0 0"), "ok");
    assert_eq!(p.ask("dup f g"), "ok");
    assert_eq!(p.ask("close g"), "ok");
    assert_eq!(q.ask("flock w f"), "AGAIN", "a flock outlives a duplicate");
    // FU-07: LOCK_UN without LOCK_NB.
    assert_eq!(p.ask("flock uw f"), "ok");
    assert_eq!(q.ask("flock w f"), "ok");
    // Locks of all three kinds by one process, through one handle.
    assert_eq!(
        q.ask("ofd r f 0 1"),
        "AGAIN",
        "an OFD lock conflicts with the process's own POSIX lock"
    );
    assert_eq!(q.ask("posix u f 0 0"), "ok");
    assert_eq!(q.ask("ofd w f 0 1"), "ok");
    assert_eq!(q.ask("posix w f 0 1"), "AGAIN");
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_22_a_flock_is_free_as_soon_as_its_file_is_closed() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "g", "y"), client_with(&mount, "f", "x"));
    let path = mount.path("x");
    for round in 0..300 {
        assert_eq!(p.ask(&format!("open f {}", path.display())), "ok");
        assert_eq!(p.ask("flock w f"), "ok", "round {round}");
        assert_eq!(p.ask("close f"), "ok");
        assert_eq!(q.ask("flock w f"), "ok", "round {round}");
        assert_eq!(q.ask("flock u f"), "ok");
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn blocked_requests_of_each_kind_are_granted_in_time() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    for (lock, wait, unlock) in [
        ("posix w f 0 0", "posix ww f 0 0", "posix u f 0 0"),
        ("ofd w f 0 0", "ofd ww f 0 0", "ofd u f 0 0"),
        ("flock w f", "flock ww f", "flock u f"),
    ] {
        assert_eq!(p.ask(lock), "ok");
        q.tell(wait);
        assert!(q.waits(), "{wait}");
        assert_eq!(mount.counts().waiting, 1);
        // One blocked lock holds up nothing else in the folder.
        std::fs::write(mount.path("other"), "").expect("creates");
        std::fs::rename(mount.path("other"), mount.path("renamed")).expect("renames");
        std::fs::remove_file(mount.path("renamed")).expect("unlinks");
        assert_eq!(p.ask(unlock), "ok");
        assert_eq!(q.answer(), "ok");
        assert_eq!(q.ask(unlock), "ok");
    }
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn fu_16_a_waiter_can_be_interrupted_and_killed_at_once() {
    let mount = TestMount::new();
    let mut holder = client_with(&mount, "f", "x");
    for (lock, wait) in [
        ("posix w f 0 0", "posix ww f 0 0"),
        ("ofd w f 0 0", "ofd ww f 0 0"),
        ("flock w f", "flock ww f"),
    ] {
        assert_eq!(holder.ask(lock), "ok");
        let mut waiter = client_with(&mount, "f", "x");
        let thread = waiter.ask("alarm");
        waiter.tell(wait);
        assert!(waiter.waits());
        waiter.interrupt(&thread);
        assert_eq!(waiter.answer(), "INTR", "{wait}");
        waiter.tell(wait);
        assert!(waiter.waits());
        let killed = Instant::now();
        assert!(waiter.kill(), "{wait}: stuck in the kernel");
        assert!(killed.elapsed() < Duration::from_secs(1));
        mount.wait_for("waiter", |mount| mount.counts().waiting == 0);
        assert_eq!(holder.ask(&lock.replace(" w ", " u ")), "ok");
    }
    drop(holder);
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn killed_holders_and_waiters_leave_nothing() {
    let mount = TestMount::new();
    for lock in ["posix w f 0 0", "ofd w f 0 0", "flock w f"] {
        for _ in 0..5 {
            let mut holder = client_with(&mount, "f", "x");
            assert_eq!(holder.ask(lock), "ok");
            let mut waiters: Vec<Client> = (0..4).map(|_| client_with(&mount, "f", "x")).collect();
            for waiter in &mut waiters {
                waiter.tell(&lock.replace(" w ", " ww "));
            }
            mount.wait_for("waiters", |mount| mount.counts().waiting == 4);
            assert!(waiters[1].kill());
            assert!(holder.kill());
            assert!(waiters[0].kill());
        }
    }
    nothing_left(&mount);
    mount.wait_for("handles", |mount| mount.counts().handles == 0);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn hard_links_and_unlinked_files_are_one_file() {
    let mount = TestMount::new();
    let mut p = client_with(&mount, "f", "x");
    std::fs::hard_link(mount.path("x"), mount.path("y")).expect("links");
    let mut q = client_with(&mount, "f", "y");
    assert_eq!(p.ask("posix w f 0 1"), "ok");
    assert_eq!(q.ask("posix w f 0 1"), "AGAIN");
    std::fs::remove_file(mount.path("x")).expect("unlinks");
    std::fs::remove_file(mount.path("y")).expect("unlinks");
    assert_eq!(q.ask("posix w f 0 1"), "AGAIN");
    let mut other = client_with(&mount, "f", "x");
    assert_eq!(
        other.ask("posix w f 0 1"),
        "ok",
        "a new file of the old name"
    );
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn mandatory_locks_hold_up_reads_and_writes_of_others() {
    let mount = TestMount::with(|options| options.mandatory = true);
    std::fs::write(mount.path("x"), "0123456789").expect("writes");
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    assert_eq!(p.ask("posix w f 0 5"), "ok");
    assert_eq!(p.ask("read f 0"), "1", "one's own lock is no obstacle");
    assert_eq!(q.ask("read f 7"), "1", "other bytes are free");
    q.tell("read f 0");
    assert!(q.waits());
    assert_eq!(p.ask("posix u f 0 0"), "ok");
    assert_eq!(q.answer(), "1");
    assert_eq!(p.ask("ofd w f 0 5"), "ok");
    assert_eq!(p.ask("read f 0"), "1");
    assert_eq!(q.ask("nonblock f"), "ok");
    assert_eq!(q.ask("read f 0"), "AGAIN");
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn mandatory_locks_hold_up_every_way_to_change_a_file() {
    let mount = TestMount::with(|options| options.mandatory = true);
    std::fs::write(mount.path("x"), "0123456789").expect("writes");
    std::fs::write(mount.path("other"), "0123456789").expect("writes");
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    let other = mount.path("other");
    assert_eq!(q.ask(&format!("open o {}", other.display())), "ok");
    assert_eq!(p.ask("posix w f 2 3"), "ok");
    // Truncation does not wait, and what lies below the new end is not its business.
    assert_eq!(q.ask("truncate f 3"), "AGAIN");
    assert_eq!(q.ask("truncate f 8"), "ok");
    assert_eq!(
        q.ask(&format!("trunc-open {}", mount.path("x").display())),
        "AGAIN"
    );
    for held_up in ["allocate f 0 3", "copy o 0 f 4 2", "copy f 0 o 0 3"] {
        q.tell(held_up);
        assert!(q.waits(), "{held_up}");
        assert_eq!(mount.listing()[0].waiters.len(), 1, "{held_up}");
        assert_eq!(p.ask("posix u f 2 3"), "ok");
        assert_eq!(q.answer(), "ok", "{held_up}");
        assert_eq!(p.ask("posix w f 2 3"), "ok");
    }
    for free in ["allocate f 20 3", "copy o 0 f 5 2", "copy f 0 o 0 2"] {
        assert_eq!(q.ask(free), "ok", "{free}");
    }
    // The holder may do all of it.
    for own in ["allocate f 0 3", "copy f 0 f 20 5", "truncate f 0"] {
        assert_eq!(p.ask(own), "ok", "{own}");
    }
    drop((p, q));
    nothing_left(&mount);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn unmounting_ends_every_wait() {
    let mount = TestMount::new();
    let (mut p, mut q) = (client_with(&mount, "f", "x"), client_with(&mount, "f", "x"));
    assert_eq!(p.ask("flock w f"), "ok");
    q.tell("flock ww f");
    assert!(q.waits());
    drop((p, q));
    nothing_left(&mount);
}
