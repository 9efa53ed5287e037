//! The mount under stress. These tests count and do not time: what must be there is there, and at the end
//! nothing is left.

mod support;

use support::Mount;

fn killed_in_any_order(kind: &str) {
    let mount = Mount::new();
    mount.locking_python(
        &format!(
            r#"
os.close(os.open("f", os.O_CREAT))
for number in range(1000):
    held = holder("f", "{kind}")
    first = waiter("f", "{kind}")
    waits(first)
    second = waiter("f", "{kind}")
    if number % 2: waits(second)
    # The holder first, so that a waiter is being granted what it no longer wants; or it last; or between.
    order = [(held, first, second), (first, second, held), (first, held, second), (second, held, first)]
    end(*order[number % 4])
"#
        ),
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_thousand_rounds_of_killed_processes_leave_nothing_posix() {
    killed_in_any_order("posix");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_thousand_rounds_of_killed_processes_leave_nothing_ofd() {
    killed_in_any_order("ofd");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_thousand_rounds_of_killed_processes_leave_nothing_flock() {
    killed_in_any_order("flock");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fu_10_a_thousand_waiters_hold_up_nobody() {
    let mount = Mount::new();
    let out = mount.locking_python(
        r#"
kinds = ["posix", "ofd", "flock"]
names = ["f%d" % n for n in range(20)]
holders = []
for n, name in enumerate(names):
    os.close(os.open(name, os.O_CREAT))
    holders.append(holder(name, kinds[n % 3]))
waiters = [waiter(names[n % 20], kinds[n % 20 % 3]) for n in range(1000)]
for pid in waiters: waits(pid)
# Others read, write, lock, and change the folder, also on the very files that are waited for.
for n in range(500):
    name = names[n % 20]
    with open("other", "w+") as f:
        f.write("x"); f.flush(); take(f, kinds[n % 3]); f.seek(0); assert f.read() == "x"
    os.rename("other", "renamed")
    os.stat(name)
    f = os.open(name, os.O_RDWR)
    os.pwrite(f, b"y", 0); assert os.pread(f, 1, 0) == b"y"
    os.close(f)
    os.unlink("renamed")
    assert len(os.listdir(".")) == 20
print(sum(1 for pid in waiters if not os.waitpid(pid, os.WNOHANG)[0]))
sys.stdout.flush()
# Every waiter gets its turn.
end(*holders)
left = set(waiters)
while left:
    for pid in list(left):
        with open("/proc/%d/wchan" % pid) as f:
            if f.read() != "request_wait_answer":
                end(pid); left.discard(pid)
"#,
    );
    assert_eq!(out, "1000\n");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn two_hundred_interrupts_at_once_end_as_many_waits() {
    let mount = Mount::new();
    let out = mount.locking_python(
        r#"
os.close(os.open("f", os.O_CREAT))
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
def work(kind):
    def run(tell):
        signal.signal(signal.SIGUSR1, interrupt)
        f = os.open("f", os.O_RDWR)
        tell()
        try: take(f, kind)
        except Interrupted: os._exit(7)
    return run
held = [holder("f", "posix"), holder("f", "flock")]
for _ in range(3):
    waiters = [child(work(["posix", "ofd", "flock"][n % 3])) for n in range(200)]
    for pid in waiters: waits(pid)
    for pid in waiters: os.kill(pid, signal.SIGUSR1)
    print(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7 for pid in waiters))
# The locks that were waited for are where they were.
f = os.open("f", os.O_RDWR)
refused(lambda: record(f, fcntl.F_SETLK, fcntl.F_WRLCK), errno.EAGAIN)
refused(lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EAGAIN)
end(*held)
record(f, fcntl.F_SETLK, fcntl.F_WRLCK)
fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
"#,
    );
    assert_eq!(out, "200\n200\n200\n");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_handle_shared_by_fifty_children_keeps_them_apart() {
    let mount = Mount::new();
    let mut stages = 0;
    mount.staged(
        r#"
f = os.open("f", os.O_RDWR | os.O_CREAT)
record(f, OFD_SETLK, fcntl.F_WRLCK, 1000, 1)
fcntl.flock(f, fcntl.LOCK_EX)
def work(n):
    def run(tell):
        # The process's own byte, and the description's, which is everybody's.
        record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 2 * n, 1)
        record(f, OFD_SETLK, fcntl.F_WRLCK, 1000, 1)
        refused(lambda: record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 2 * n - 2, 1), errno.EAGAIN) if n else None
        tell()
        signal.pause()
    return run
children = [child(work(n)) for n in range(50)]
stage("52")
end(*children[::2])
stage("27")
end(*children[1::2])
stage("2")
os.close(f)
stage("0")
"#,
        |expected| {
            stages += 1;
            let expected: usize = expected.parse().expect("a number");
            mount.wait_for(&format!("{expected} locks"), |mount| {
                mount.totals() == (expected, 0)
            });
        },
    );
    assert_eq!(stages, 4);
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn descriptors_passed_over_a_socket_carry_their_locks() {
    let mount = Mount::new();
    let mut stages = 0;
    mount.staged(
        r#"
ours, theirs = socket.socketpair()
def giver(tell):
    f = os.open("f", os.O_RDWR | os.O_CREAT)
    record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 0, 1)
    record(f, OFD_SETLK, fcntl.F_WRLCK, 10, 1)
    fcntl.flock(f, fcntl.LOCK_EX)
    socket.send_fds(theirs, [b"f"], [f])
    tell()
    signal.pause()
pid = child(giver)
stage("3")
end(pid)
# The description is in the socket: its locks stay, the process's own is gone.
stage("2")
_, fds, _, _ = socket.recv_fds(ours, 10, 1)
g = os.open("f", os.O_RDWR)
refused(lambda: record(g, OFD_SETLK, fcntl.F_WRLCK, 10, 1), errno.EAGAIN)
refused(lambda: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EAGAIN)
os.close(g)
stage("2")
os.close(fds[0])
stage("0")
"#,
        |expected| {
            stages += 1;
            let expected: usize = expected.parse().expect("a number");
            mount.wait_for(&format!("{expected} locks"), |mount| {
                mount.totals() == (expected, 0)
            });
        },
    );
    assert_eq!(stages, 4);
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_hundred_thousand_locks_are_held_listed_and_given_up() {
    let mount = Mount::new();
    let mut stages = 0;
    mount.staged(
        r#"
f = os.open("f", os.O_RDWR | os.O_CREAT)
for n in range(100000):
    record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 2 * n, 1)
def other(tell):
    g = os.open("f", os.O_RDWR)
    for n in range(1, 200000, 1001):
        wanted = lambda: record(g, fcntl.F_SETLK, fcntl.F_WRLCK, n, 1)
        if n % 2: wanted()
        else: refused(wanted, errno.EAGAIN)
    tell()
os.waitpid(child(other), 0)
stage("100000")
# One lock in place of all.
record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 0, 200000)
stage("1")
record(f, fcntl.F_SETLK, fcntl.F_UNLCK, 100, 1)
stage("2")
"#,
        |expected| {
            stages += 1;
            let expected: usize = expected.parse().expect("a number");
            assert_eq!(mount.totals(), (expected, 0));
        },
    );
    assert_eq!(stages, 3);
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn at_its_limits_the_server_says_enolck_and_recovers() {
    for (option, number) in [
        ("--max-locks", 20),
        ("--max-locks-per-file", 20),
        ("--max-locks-per-owner", 20),
    ] {
        let mount = Mount::with(&[option, "20"]);
        mount.locking_python(&format!(
            r#"
f = os.open("f", os.O_RDWR | os.O_CREAT)
for _ in range(3):
    for n in range({number}):
        record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 10 * n, 5)
    refused(lambda: record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 1000, 1), errno.ENOLCK)
    refused(lambda: record(f, fcntl.F_SETLKW, fcntl.F_WRLCK, 1000, 1), errno.ENOLCK)
    # An unlock that would split one lock into two is refused as well, and changes nothing.
    refused(lambda: record(f, fcntl.F_SETLK, fcntl.F_UNLCK, 12, 1), errno.ENOLCK)
    # With one given up there is room for one.
    record(f, fcntl.F_SETLK, fcntl.F_UNLCK, 0, 5)
    record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 1000, 1)
    record(f, fcntl.F_SETLK, fcntl.F_UNLCK)
"#
        ));
        mount.nothing_left();
    }
    for option in ["--max-waiters", "--max-waiters-per-file"] {
        let mount = Mount::with(&[option, "5"]);
        mount.locking_python(
            r#"
os.close(os.open("f", os.O_CREAT))
for kind in "posix", "ofd", "flock":
    held = holder("f", kind)
    waiters = [waiter("f", kind) for _ in range(5)]
    for pid in waiters: waits(pid)
    f = os.open("f", os.O_RDWR)
    refused(lambda: take(f, kind), errno.ENOLCK)
    end(waiters.pop())
    sixth = waiter("f", kind)
    waits(sixth)
    end(held, sixth, *waiters)
    take(f, kind)
    os.close(f)
"#,
        );
        mount.nothing_left();
    }
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn one_blocked_lock_holds_up_nothing_in_its_folder() {
    let mount = Mount::new();
    mount.locking_python(
        r#"
os.mkdir("d")
for kind in "posix", "ofd", "flock":
    name = "d/" + kind
    os.close(os.open(name, os.O_CREAT))
    pids = [holder(name, kind), waiter(name, kind)]
    waits(pids[1])
    os.stat(name)
    with open(name, "a") as f: f.write("x")
    with open("d/new", "w") as f: f.write("x")
    os.rename("d/new", "d/renamed")
    os.link(name, "d/link")
    os.rename(name, "d/moved")
    assert sorted(os.listdir("d")) == ["link", "moved", "renamed"]
    os.unlink("d/renamed"); os.unlink("d/link"); os.unlink("d/moved")
    os.mkdir("d/sub"); os.rmdir("d/sub")
    end(*pids)
"#,
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn deadlocks_of_record_locks_are_refused_across_files_and_of_others_not() {
    let mount = Mount::new();
    mount.locking_python(
        r#"
def ring(kind, size):
    command = {"posix": fcntl.F_SETLKW, "ofd": OFD_SETLKW}[kind]
    for n in range(size): os.close(os.open("f%d" % n, os.O_CREAT))
    def work(n):
        def run(tell):
            f, g = (os.open("f%d" % (m % size), os.O_RDWR) for m in (n, n + 1))
            record(f, command, fcntl.F_WRLCK)
            tell()
            signal.sigwait([signal.SIGUSR1])
            record(g, command, fcntl.F_WRLCK)
            signal.pause()
        return run
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    members = [child(work(n)) for n in range(size)]
    for pid in members[:-1]:
        os.kill(pid, signal.SIGUSR1); waits(pid)
    return members
for size in 2, 3, 20:
    members = ring("posix", size)
    f, g = os.open("f%d" % (size - 1), os.O_RDWR), None
    # The last one closes the ring: EDEADLK ends it, as its script does not catch the error.
    os.kill(members[-1], signal.SIGUSR1)
    assert os.waitstatus_to_exitcode(os.waitpid(members[-1], 0)[1]) == 1
    end(*members[:-1])
    os.close(f)
members = ring("ofd", 3)
os.kill(members[-1], signal.SIGUSR1)
waits(members[-1])
end(*members)
"#,
    );
    mount.nothing_left();
}
