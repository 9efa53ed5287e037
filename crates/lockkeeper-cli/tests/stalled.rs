//! A source that hangs: another mount below it, whose server is stopped. Who asks it for something waits;
//! locks, and files elsewhere, go on.

mod support;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Mount, PROGRAM};

/// A mount at `hung` below the source of another one; its server can be stopped.
struct Inner {
    server: Child,
    mountpoint: PathBuf,
}

impl Inner {
    fn new(outer: &Mount) -> Inner {
        let mountpoint = outer.beside("source/hung");
        let server = Command::new(PROGRAM)
            .args(["mount", "--no-status", "--no-backing", "--cache", "0"])
            .args([outer.beside("below"), mountpoint.clone()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let inner = Inner { server, mountpoint };
        outer.wait_for("the inner mount", |mount| {
            mount.beside("source/hung/file").exists()
        });
        inner
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal).expect("signalled");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Killed, it answers every call that hangs.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.mountpoint)
            .status();
    }
}

fn locks_and_other_files_go_on(options: &[&str], data: &str) {
    let outer = Mount::with(options);
    std::fs::create_dir(outer.beside("below")).expect("mkdir");
    std::fs::create_dir(outer.path("d")).expect("mkdir");
    for file in ["below/file", "source/f", "source/g"] {
        std::fs::write(outer.beside(file), "x").expect("writes");
    }
    let inner = Inner::new(&outer);
    let mut stages = 0;
    outer.staged(
        &format!(
            r#"
kept = os.open("hung/file", os.O_RDWR)
closed = os.open("hung/file", os.O_RDWR)
take(kept, "flock")
held, waiting = holder("g", "posix"), waiter("g", "posix")
waits(waiting)
stage("stop")
def hang(call):
    def run(tell):
        tell()
        try: call()
        except FileNotFoundError: pass
    pid = child(run); hangs(pid)
    return pid
def hangs(pid):
    """Until it waits for an answer, or for somebody who does so with the folder or file in his hands."""
    for _ in range(5000):
        with open("/proc/%d/wchan" % pid) as f: where = f.read()
        if where == "request_wait_answer" or where.startswith(("rwsem_", "fuse_")): return
        time.sleep(0.001)
    sys.exit("%d does not wait: %s" % (pid, where))
def lookup(n): return lambda: os.stat("hung/%d" % n)
# More than there are workers, and one of each kind of call.
hanging = [hang(lookup(n)) for n in range(70)]
hanging += [hang(call) for call in (
    lambda: os.fstat(kept), lambda: os.open("hung/file", os.O_RDONLY), lambda: os.pread(kept, 1, 0),
    lambda: os.pwrite(kept, b"y", 0), lambda: os.ftruncate(kept, 7), lambda: os.fsync(kept),
    lambda: os.mkdir("hung/d"), lambda: os.listdir("hung"), lambda: os.statvfs("hung"){data})]
os.close(closed)
for n in range(1000):
    kind = ["posix", "ofd", "flock"][n % 3]
    # Closed and locked again: never one's own old lock.
    f = os.open("f", os.O_RDWR)
    if kind == "flock": fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else: record(f, OFD_SETLK if kind == "ofd" else fcntl.F_SETLK, fcntl.F_WRLCK)
    os.pwrite(f, b"z", 0); assert os.pread(f, 1, 0) == b"z"
    os.close(f)
    if n % 10 == 0:
        with open("d/a", "w") as a: a.write("x")
        os.rename("d/a", "d/b"); os.stat("d/b"); assert os.listdir("d") == ["b"]
        os.unlink("d/b")
# Locks on the file itself, too, and waits of all sorts.
fcntl.flock(kept, fcntl.LOCK_UN)
record(kept, fcntl.F_SETLK, fcntl.F_WRLCK, 0, 1)
record(kept, fcntl.F_SETLK, fcntl.F_UNLCK, 0, 1)
end(held)
while True:
    with open("/proc/%d/wchan" % waiting) as f:
        if f.read() != "request_wait_answer": break
late = hang(lambda: take(os.open("g", os.O_RDWR), "posix"))
end(late, waiting)
assert all(not os.waitpid(pid, os.WNOHANG)[0] for pid in hanging)
stage("go on")
failed = [n for n, pid in enumerate(hanging) if os.waitpid(pid, 0)[1] != 0]
assert not failed, failed
assert os.fstat(kept).st_size == 7, os.fstat(kept).st_size
os.close(kept)
"#
        ),
        |stage| {
            stages += 1;
            inner.signal(match stage {
                "stop" => Signal::STOP,
                _ => Signal::CONT,
            });
        },
    );
    assert_eq!(stages, 2);
    outer.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn locks_and_other_files_go_on_while_the_source_hangs() {
    locks_and_other_files_go_on(&["--cache", "0"], "");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn mandatory_locks_and_other_files_go_on_while_the_source_hangs() {
    locks_and_other_files_go_on(
        &["--cache", "0", "--mandatory"],
        r#", lambda: os.truncate("hung/file", 7)"#,
    );
}
