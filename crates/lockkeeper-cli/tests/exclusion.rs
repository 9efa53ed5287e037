//! Real programs whose data depends on exclusion, each on a mount; and each once more on a mount that gives
//! every lock to everybody, where it must notice: a test that passes there shows nothing.

mod support;

use support::{Mount, free_port, said};

/// What became of a program: `Err` with what it said, where somebody was let in who should not have been.
type Seen = Result<(), String>;

/// Runs the program on a mount of lockkeeper's, where all must go well, and on one without exclusion, where
/// it must not.
fn shows_exclusion(program: impl Fn(&Mount) -> Seen) {
    let mount = Mount::new();
    if let Err(seen) = program(&mount) {
        panic!("no exclusion: {seen}");
    }
    mount.nothing_left();
    drop(mount);
    let without = Mount::without_exclusion();
    let noticed = program(&without);
    assert!(
        noticed.is_err(),
        "it does not notice that nobody is excluded"
    );
}

/// `Ok` if all of `expected` was said.
fn expect(said: &str, expected: &[&str]) -> Seen {
    match expected.iter().all(|text| said.contains(text)) {
        true => Ok(()),
        false => Err(said.into()),
    }
}

fn sqlite_writers(mount: &Mount, mode: &str) -> Seen {
    let script = r#"
import os, sqlite3, sys
mode = sys.argv[1]
def connect():
    return sqlite3.connect("test.db", timeout=60, isolation_level=None)
first = connect()
assert first.execute("pragma journal_mode=" + mode).fetchone()[0] == mode
first.execute("create table rows (writer int, number int, unique (writer, number))")
first.execute("create table total (n int)")
first.execute("insert into total values (0)")
first.close()
children = []
for writer in range(8):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own = connect()
            own.execute("pragma synchronous=off")
            for number in range(40):
                own.execute("begin immediate")
                n = own.execute("select n from total").fetchone()[0]
                own.execute("insert into rows values (?, ?)", (writer, number))
                own.execute("update total set n = ?", (n + 1,))
                own.execute("commit")
            status = 0
        finally:
            os._exit(status)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children), "a writer failed"
last = connect()
assert last.execute("pragma integrity_check").fetchone()[0] == "ok"
assert last.execute("select count(*) from rows").fetchone()[0] == 320, "rows are lost"
assert last.execute("select n from total").fetchone()[0] == 320, "updates are lost"
# A second writer who does not wait is refused.
last.execute("begin immediate")
pid = os.fork()
if pid == 0:
    busy = sqlite3.connect("test.db", timeout=0, isolation_level=None)
    try:
        busy.execute("begin immediate")
    except sqlite3.OperationalError as error:
        os._exit(0 if "locked" in str(error) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0, "a second writer was let in"
last.execute("rollback")
"#;
    let output = mount.run(&["/usr/bin/python3", "-c", script, mode]);
    if !output.status.success() {
        return Err(said(&output));
    }
    // The same database through the program that most people use.
    let out = mount.sh("sqlite3 test.db 'select count(*) from rows; pragma integrity_check'");
    expect(&out, &["320\nok\n"])
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_journal_that_is_deleted() {
    shows_exclusion(|mount| sqlite_writers(mount, "delete"));
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_journal_that_is_truncated() {
    shows_exclusion(|mount| sqlite_writers(mount, "truncate"));
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_write_ahead_log() {
    shows_exclusion(|mount| sqlite_writers(mount, "wal"));
}

/// Starts `holder` in the background, waits until it has written the file `ready` beside the mount, and ends
/// it when the script ends. What follows may use `$holder`, its process id.
fn with_holder(holder: &str, then: &str) -> String {
    format!(
        r#"
rm -f "$BESIDE/ready"
{holder} > "$BESIDE/holder" 2>&1 &
holder=$!
trap 'kill $holder 2>/dev/null || :; wait $holder 2>/dev/null || :' EXIT
for try in $(seq 500); do
    [ -e "$BESIDE/ready" ] && break
    kill -0 $holder || {{ cat "$BESIDE/holder"; exit 9; }}
    sleep 0.02
done
[ -e "$BESIDE/ready" ]
{then}
"#
    )
}

/// A Python program that does something, says so, and keeps it until it is ended.
fn python_holder(what: &str) -> String {
    format!(
        "/usr/bin/python3 -c '{what}
import os, time
open(os.environ[\"BESIDE\"] + \"/ready\", \"w\").close()
time.sleep(100)'"
    )
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn leveldb_opened_twice_is_refused() {
    shows_exclusion(|mount| {
        let open =
            "import plyvel\ndb = plyvel.DB(\"db\", create_if_missing=True)\ndb.put(b\"a\", b\"1\")";
        let out = mount.try_sh(&with_holder(
            &python_holder(open),
            &format!("/usr/bin/python3 -c '{open}' 2>&1 | tail -1 || :"),
        ))?;
        expect(&out, &["lock", "temporarily unavailable"])?;
        // The holder is gone: now it opens, and what was put is there.
        mount.nothing_left();
        let out = mount.sh(&format!(
            "/usr/bin/python3 -c '{open}\nprint(db.get(b\"a\"))'"
        ));
        expect(&out, &["b'1'\n"])
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn rocksdb_opened_twice_is_refused() {
    shows_exclusion(|mount| {
        // Without a command for longer it has the database open.
        let holder = r#"setsid sh -c '
        { echo "put a 1"; sleep 1; touch "$BESIDE/ready"; sleep 100; } | ldb --db=db query'"#;
        let out = mount.try_sh(&format!(
            "ldb --db=db --create_if_missing put z 0\n{}",
            with_holder(holder, "ldb --db=db put b 2 2>&1 || :\nkill -- -$holder")
        ))?;
        expect(&out, &["lock", "temporarily unavailable"])?;
        mount.nothing_left();
        let out = mount.sh("ldb --db=db put b 2; ldb --db=db scan");
        expect(&out, &["b : 2"])
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_lock_on_dpkgs_database_is_honoured() {
    shows_exclusion(|mount| {
        let lock = "import fcntl
held = open(\"admin/lock-frontend\", \"w\"); fcntl.lockf(held, fcntl.LOCK_EX)
other = open(\"admin/lock\", \"w\"); fcntl.lockf(other, fcntl.LOCK_EX)";
        let dpkg = "dpkg --root=root --admindir=admin --configure -a 2>&1";
        let prepare = "mkdir -p root admin/updates admin/info admin/triggers; : > admin/status; : > admin/available\n";
        let out = mount.try_sh(&format!(
            "{prepare}{}",
            with_holder(
                &python_holder(lock),
                &format!("{dpkg} && exit 1 || echo holder $holder")
            )
        ))?;
        let holder = out.split_whitespace().last().expect("says its pid");
        expect(
            &out,
            &["locked by another process", &format!("pid {holder}")],
        )?;
        mount.try_sh(dpkg).map(drop)
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_lock_on_apts_folders_is_honoured() {
    shows_exclusion(|mount| {
        let lock = "import fcntl
held = open(\"archives/lock\", \"w\"); fcntl.lockf(held, fcntl.LOCK_EX)
other = open(\"lists/lock\", \"w\"); fcntl.lockf(other, fcntl.LOCK_EX)";
        let options = "-o Dir::Cache::archives=$MNT/archives/ -o Dir::State::lists=$MNT/lists/ \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root";
        let out = mount.try_sh(&format!(
            "mkdir -p archives/partial lists/partial\n{}",
            with_holder(
                &python_holder(lock),
                &format!(
                    "apt-get {options} clean 2>&1 && exit 1 || :
                apt-get {options} update 2>&1 && exit 1 || echo holder $holder"
                )
            )
        ))?;
        let holder = out.split_whitespace().last().expect("says its pid");
        for folder in ["archives", "lists"] {
            let refused = format!("{folder}/lock. It is held by process {holder}");
            expect(&out, &[&refused])?;
        }
        let both = format!("apt-get {options} clean && apt-get {options} update");
        mount.try_sh(&both).map(drop)
    });
}

/// With DB_REGISTER each process holds a lock on a byte of a register, and who finds an entry without its
/// lock runs recovery, which takes the environment away from everybody who uses it.
#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn berkeley_db_sees_which_processes_live() {
    shows_exclusion(|mount| {
        mount.try_python(
            r#"
import ctypes, os
from bsddb3 import db
flags = (db.DB_CREATE | db.DB_INIT_MPOOL | db.DB_INIT_LOCK | db.DB_INIT_LOG | db.DB_INIT_TXN
         | db.DB_REGISTER | db.DB_RECOVER)
os.mkdir("env")
def begin():
    env = db.DBEnv()
    env.set_thread_count(8)
    env.open("env", flags)
    table = db.DB(env)
    table.open("table.db", None, db.DB_BTREE, db.DB_CREATE | db.DB_AUTO_COMMIT)
    return env, table
def child(work):
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # PR_SET_PDEATHSIG: a script that fails leaves nobody behind.
            ctypes.CDLL(None).prctl(1, 9)
            work(lambda: os.write(tell, b"r"), lambda: os.read(wait, 1))
            status = 0
        finally:
            os._exit(status)
    os.close(tell)
    assert os.read(ready, 1) == b"r"
    return pid, go
def first(tell, wait):
    env, table = begin()
    table.put(b"a", b"1")
    tell()
    wait()
    # The other has come and gone, and had no reason to recover.
    table.put(b"b", b"2")
    assert table.get(b"c") == b"3"
    table.close(); env.close()
def second(tell, wait):
    env, table = begin()
    assert table.get(b"a") == b"1"
    table.put(b"c", b"3")
    table.close(); env.close()
    tell()
one, go = child(first)
two, _ = child(second)
assert os.waitpid(two, 0)[1] == 0
os.write(go, b"g")
assert os.waitpid(one, 0)[1] == 0, "the second process took the environment away from the first"
# One that is killed leaves an entry without a lock: the next recovers, and loses nothing.
def killed(tell, wait):
    env, table = begin()
    table.put(b"d", b"4")
    tell()
    wait()
three, _ = child(killed)
os.kill(three, 9)
os.waitpid(three, 0)
env, table = begin()
assert [table.get(k) for k in (b"a", b"b", b"c", b"d")] == [b"1", b"2", b"3", b"4"]
table.close(); env.close()
"#,
        )?;
        let out = mount.sh("db_verify env/table.db");
        expect(&out, &["succeeded"])
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn flock_with_and_without_a_timeout_returns_against_a_holder() {
    shows_exclusion(|mount| {
        let out = mount.try_sh(&with_holder(
            r#"setsid flock lock sh -c 'touch "$BESIDE/ready"; sleep 100'"#,
            "set +e
        timeout 10 flock -n lock true; echo $?
        begin=$(date +%s%N)
        timeout 10 flock -w 1 lock true; echo $?
        took=$((($(date +%s%N) - begin) / 1000000))
        [ $took -ge 900 ] && [ $took -lt 3000 ] || echo took $took ms
        timeout 10 flock -s -w 0.1 lock true; echo $?
        kill -- -$holder
        timeout 10 flock -w 5 lock echo mine",
        ))?;
        expect(&out, &["1\n1\n1\nmine\n"])
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fasteners_exclude_each_other() {
    shows_exclusion(|mount| {
        let out = mount.try_sh(&with_holder(
            &python_holder(
                "import fasteners
one = fasteners.InterProcessLock(\"one\"); assert one.acquire()
two = fasteners.InterProcessReaderWriterLock(\"two\"); two.acquire_read_lock()",
            ),
            r#"/usr/bin/python3 -c '
import fasteners
print(fasteners.InterProcessLock("one").acquire(blocking=False))
print(fasteners.InterProcessLock("one").acquire(timeout=0.3))
two = fasteners.InterProcessReaderWriterLock("two")
print(two.acquire_write_lock(blocking=False))
print(two.acquire_read_lock(blocking=False))
print(fasteners.InterProcessLock("three").acquire(blocking=False))
'"#,
        ))?;
        expect(&out, &["False\nFalse\nFalse\nTrue\nTrue\n"])
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn lost_updates_are_none_under_each_kind_of_lock() {
    shows_exclusion(|mount| {
        mount
            .try_python(
                r#"
import fcntl, os, struct
def record(command):
    def call(f, kind):
        kinds = {"lock": fcntl.F_WRLCK, "unlock": fcntl.F_UNLCK}
        fcntl.fcntl(f, command, struct.pack("hhqqi4x", kinds[kind], 0, 0, 0, 0))
    return call
def flock(f, kind):
    fcntl.flock(f, fcntl.LOCK_EX if kind == "lock" else fcntl.LOCK_UN)
for name, call in ("posix", record(fcntl.F_SETLKW)), ("ofd", record(38)), ("flock", flock):
    with open(name, "w") as f:
        f.write("0")
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                f = os.open(name, os.O_RDWR)
                for _ in range(250):
                    call(f, "lock")
                    n = int(os.pread(f, 20, 0))
                    os.pwrite(f, str(n + 1).encode(), 0)
                    call(f, "unlock")
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    with open(name) as f:
        assert f.read() == "2000", name
"#,
            )
            .map(drop)
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn redis_cluster_nodes_do_not_share_their_configuration() {
    shows_exclusion(|mount| {
        let server = |port: u16| {
            format!(
                "redis-server --port {port} --bind 127.0.0.1 --dir $MNT --cluster-enabled yes \
             --cluster-config-file nodes.conf --appendonly yes --save ''"
            )
        };
        // Not on the default ports, where a server of this machine may listen.
        let (first, second) = (free_port(), free_port());
        let out = mount.try_sh(&with_holder(
        &format!(
            "sh -c '{} & echo $! > $BESIDE/redis; until redis-cli -p {first} ping; do sleep 0.05; done; touch $BESIDE/ready; wait'",
            server(first).replace("''", "\"\"")
        ),
        &format!(
            "redis-cli -p {first} cluster addslotsrange 0 16383
            until redis-cli -p {first} set key value | grep -q OK; do sleep 0.05; done
            timeout -s KILL 10 {} || :
            redis-cli -p {first} get key
            redis-cli -p {first} bgrewriteaof
            redis-cli -p {first} shutdown nosave || :
            wait $holder || :",
            server(second)
        ),
    ))?;
        let refused = "already used by a different Redis Cluster node";
        expect(&out, &[refused, "\nvalue\n"])
    });
}
