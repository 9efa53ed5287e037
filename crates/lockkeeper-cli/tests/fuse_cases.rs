//! What locks on FUSE mounts are known to get wrong, by the numbers of the cases, as far as it takes real
//! exclusion to see it. The other cases are tested in `lockkeeper-mount`: by its wire tests (FU-07, 08, 09,
//! 17, 19) and on a mount (FU-01, 02, 12, 13, 16, 22); FU-10 is in `stress`.

mod support;

use support::Mount;

const QUERIES: &str = r#"
import threading
OFD_GETLK = 36
def query(f, command, kind, start=0, length=0):
    answer = fcntl.fcntl(f, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
    kind, _, start, length, pid = struct.unpack("hhqqi4x", answer)
    return None if kind == fcntl.F_UNLCK else (kind, start, length, pid)
def in_thread(call):
    thread = threading.Thread(target=call); thread.start(); thread.join()
"#;

fn python(script: &str) {
    let mount = Mount::new();
    mount.locking_python(&format!("{QUERIES}{script}"));
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fu_04_a_lock_taken_by_a_thread_is_its_processs() {
    python(
        r#"
f = os.open("f", os.O_RDWR | os.O_CREAT)
in_thread(lambda: record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 5, 1))
def asker(tell):
    g = os.open("f", os.O_RDWR)
    assert query(g, fcntl.F_GETLK, fcntl.F_WRLCK) == (fcntl.F_WRLCK, 5, 1, os.getppid())
    tell()
os.waitpid(child(asker), 0)
# Every thread may give it up.
in_thread(lambda: record(f, fcntl.F_SETLK, fcntl.F_UNLCK, 5, 1))
def free(tell):
    g = os.open("f", os.O_RDWR)
    assert query(g, fcntl.F_GETLK, fcntl.F_WRLCK) is None
    tell()
os.waitpid(child(free), 0)
"#,
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fu_05_after_the_last_close_nothing_is_seen_of_an_ofd_lock() {
    python(
        r#"
import queue
b = os.open("f", os.O_RDWR | os.O_CREAT)
# A thread shares the table of descriptors, and so can close the last one.
asked, done = queue.SimpleQueue(), queue.SimpleQueue()
def closer():
    while (fd := asked.get()) is not None:
        os.close(fd); done.put(None)
thread = threading.Thread(target=closer); thread.start()
for n in range(10000):
    a = os.open("f", os.O_RDWR)
    record(a, OFD_SETLK, fcntl.F_WRLCK, 0, 1)
    if n % 2: os.close(a)
    else: asked.put(a); done.get()
    assert query(b, OFD_GETLK, fcntl.F_WRLCK, 0, 1) is None, n
asked.put(None); thread.join()
"#,
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fu_15_a_conflict_is_eagain_and_nothing_else() {
    python(
        r#"
f = os.open("f", os.O_RDWR | os.O_CREAT)
record(f, fcntl.F_SETLK, fcntl.F_RDLCK, 0, 10)
g = os.open("f", os.O_RDWR)
fcntl.flock(f, fcntl.LOCK_SH)
def other(tell):
    h = os.open("f", os.O_RDWR)
    for kind in fcntl.F_RDLCK, fcntl.F_WRLCK:
        for command in fcntl.F_SETLK, OFD_SETLK:
            call = lambda: record(h, command, kind, 9, 1)
            if kind == fcntl.F_WRLCK: refused(call, errno.EAGAIN)
            else: call(); record(h, command, fcntl.F_UNLCK, 9, 1)
    refused(lambda: fcntl.flock(h, fcntl.LOCK_EX | fcntl.LOCK_NB), errno.EWOULDBLOCK)
    fcntl.flock(h, fcntl.LOCK_SH | fcntl.LOCK_NB)
    tell()
assert os.waitstatus_to_exitcode(os.waitpid(child(other), 0)[1]) == 0
# What is wrong for another reason says so.
r = os.open("f", os.O_RDONLY)
refused(lambda: record(r, fcntl.F_SETLK, fcntl.F_WRLCK), errno.EBADF)
refused(lambda: record(g, fcntl.F_SETLK, fcntl.F_WRLCK, -1, 1), errno.EINVAL)
refused(lambda: record(g, fcntl.F_SETLK, fcntl.F_WRLCK, 2**63 - 1, 2), errno.EOVERFLOW)
"#,
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fu_21_sqlites_dance_at_one_gib() {
    python(
        r#"
# Three processes that do as they are told.
class Actor:
    def __init__(self):
        here, there = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            here.close()
            f = os.open("f", os.O_RDWR | os.O_CREAT)
            while order := there.recv(100):
                kind, start, length = (int(word) for word in order.split())
                try: record(f, fcntl.F_SETLK, kind, start, length); answer = 0
                except OSError as error: answer = error.errno
                there.send(b"%d" % answer)
            os._exit(0)
        there.close()
        self.socket = here
    def __call__(self, kind, start, length=1):
        self.socket.send(b"%d %d %d" % (kind, start, length))
        return int(self.socket.recv(100))
    def end(self):
        self.socket.close(); end(self.pid)
a, b, c = Actor(), Actor(), Actor()
R, W, U, B = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK, 1 << 30
def shared(p):
    got = p(R, B)
    if got == 0: got = p(R, B + 2, 510)
    p(U, B)
    return got
assert (shared(a), shared(b)) == (0, 0)
assert b(W, B + 1) == 0                       # reserved
assert b(W, B) == 0                           # pending
assert c(R, B) == errno.EAGAIN                # no new reader
assert b(W, B + 2, 510) == errno.EAGAIN       # a still reads
assert a(U, 0, 0) == 0
assert b(W, B + 2, 510) == 0                  # exclusive
assert c(R, B) == errno.EAGAIN
assert (b(R, B + 2, 510), b(U, B, 2)) == (0, 0)
assert shared(c) == 0
for actor in (a, b, c): actor.end()
"#,
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn the_process_is_shown_as_the_asker_sees_it() {
    let mount = Mount::new();
    // One that holds a lock inside a new pid namespace, where it is process 1, and one that asks there.
    mount.locking_python(&format!(
        "{QUERIES}{}",
        r#"
import subprocess
f = os.open("f", os.O_RDWR | os.O_CREAT)
record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 0, 1)
inside = """
import fcntl, os, struct
g = os.open("f", os.O_RDWR)
def query(start):
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, 1, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(g, fcntl.F_GETLK, lock))[4]
print(os.getpid(), query(0), flush=True)
fcntl.lockf(g, fcntl.LOCK_EX, 1, 10)
input()
"""
other = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", inside],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
# From inside the holder cannot be seen: 0.
assert other.stdout.readline() == "1 0\n"
for _ in range(500):
    found = query(f, fcntl.F_GETLK, fcntl.F_WRLCK, 10, 1)
    if found: break
    time.sleep(0.01)
# From outside it has its number here: the child of unshare.
children = open("/proc/%d/task/%d/children" % (other.pid, other.pid)).read().split()
assert [str(found[3])] == children, (found, children)
other.communicate("\n")
"#
    ));
    mount.nothing_left();
}
