//! Real programs on a mount. First those whose data depends on exclusion: each of these fails on a mount
//! that lets two processes hold one lock. Then those that show that nothing else breaks.

mod support;

use support::{Mount, said};

// ---- Programs that need exclusion ------------------------------------------------------------------

fn sqlite_writers(mode: &str) {
    let mount = Mount::new();
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
    assert!(output.status.success(), "{}", said(&output));
    // The same database through the program that most people use.
    assert_eq!(
        mount.sh("sqlite3 test.db 'select count(*) from rows; pragma integrity_check'"),
        "320\nok\n"
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_journal_that_is_deleted() {
    sqlite_writers("delete");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_journal_that_is_truncated() {
    sqlite_writers("truncate");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn sqlite_writers_lose_nothing_with_a_write_ahead_log() {
    sqlite_writers("wal");
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
    let mount = Mount::new();
    let open =
        "import plyvel\ndb = plyvel.DB(\"db\", create_if_missing=True)\ndb.put(b\"a\", b\"1\")";
    let out = mount.sh(&with_holder(
        &python_holder(open),
        &format!("/usr/bin/python3 -c '{open}' 2>&1 | tail -1 || :"),
    ));
    assert!(
        out.contains("lock") && out.contains("temporarily unavailable"),
        "{out}"
    );
    // The holder is gone: now it opens, and what was put is there.
    mount.nothing_left();
    assert_eq!(
        mount.sh(&format!(
            "/usr/bin/python3 -c '{open}\nprint(db.get(b\"a\"))'"
        )),
        "b'1'\n"
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn rocksdb_opened_twice_is_refused() {
    let mount = Mount::new();
    // Without a command for longer it has the database open.
    let holder = r#"setsid sh -c '
        { echo "put a 1"; sleep 1; touch "$BESIDE/ready"; sleep 100; } | ldb --db=db query'"#;
    let out = mount.sh(&format!(
        "ldb --db=db --create_if_missing put z 0\n{}",
        with_holder(holder, "ldb --db=db put b 2 2>&1 || :\nkill -- -$holder")
    ));
    assert!(
        out.contains("lock") && out.contains("temporarily unavailable"),
        "{out}"
    );
    mount.nothing_left();
    let out = mount.sh("ldb --db=db put b 2; ldb --db=db scan");
    assert!(out.contains("b : 2"), "{out}");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_lock_on_dpkgs_database_is_honoured() {
    let mount = Mount::new();
    let lock = "import fcntl
held = open(\"admin/lock-frontend\", \"w\"); fcntl.lockf(held, fcntl.LOCK_EX)
other = open(\"admin/lock\", \"w\"); fcntl.lockf(other, fcntl.LOCK_EX)";
    let dpkg = "dpkg --root=root --admindir=admin --configure -a 2>&1";
    let prepare = "mkdir -p root admin/updates admin/info admin/triggers; : > admin/status; : > admin/available\n";
    let out = mount.sh(&format!(
        "{prepare}{}",
        with_holder(
            &python_holder(lock),
            &format!("{dpkg} && exit 1 || echo holder $holder")
        )
    ));
    let holder = out.split_whitespace().last().expect("says its pid");
    assert!(out.contains("locked by another process"), "{out}");
    assert!(out.contains(&format!("pid {holder}")), "{out}");
    mount.sh(dpkg);
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_lock_on_apts_folders_is_honoured() {
    let mount = Mount::new();
    let lock = "import fcntl
held = open(\"archives/lock\", \"w\"); fcntl.lockf(held, fcntl.LOCK_EX)
other = open(\"lists/lock\", \"w\"); fcntl.lockf(other, fcntl.LOCK_EX)";
    let options = "-o Dir::Cache::archives=$MNT/archives/ -o Dir::State::lists=$MNT/lists/ \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root";
    let out = mount.sh(&format!(
        "mkdir -p archives/partial lists/partial\n{}",
        with_holder(
            &python_holder(lock),
            &format!(
                "apt-get {options} clean 2>&1 && exit 1 || :
                apt-get {options} update 2>&1 && exit 1 || echo holder $holder"
            )
        )
    ));
    let holder = out.split_whitespace().last().expect("says its pid");
    for folder in ["archives", "lists"] {
        let refused = format!("{folder}/lock. It is held by process {holder}");
        assert!(out.contains(&refused), "{out}");
    }
    mount.sh(&format!(
        "apt-get {options} clean && apt-get {options} update"
    ));
    mount.nothing_left();
}

/// With DB_REGISTER each process holds a lock on a byte of a register, and who finds an entry without its
/// lock runs recovery, which takes the environment away from everybody who uses it.
#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn berkeley_db_sees_which_processes_live() {
    let mount = Mount::new();
    mount.python(
        r#"
import os
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
            work(lambda: os.write(tell, b"r"), lambda: os.read(wait, 1))
            status = 0
        finally:
            os._exit(status)
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
    );
    let out = mount.sh("db_verify env/table.db");
    assert!(out.contains("succeeded"), "{out}");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn flock_with_and_without_a_timeout_returns_against_a_holder() {
    let mount = Mount::new();
    let out = mount.sh(&with_holder(
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
    ));
    assert_eq!(out, "1\n1\n1\nmine\n");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn fasteners_exclude_each_other() {
    let mount = Mount::new();
    let out = mount.sh(&with_holder(
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
    ));
    assert_eq!(out, "False\nFalse\nFalse\nTrue\nTrue\n");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn lost_updates_are_none_under_each_kind_of_lock() {
    let mount = Mount::new();
    mount.python(
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
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn redis_cluster_nodes_do_not_share_their_configuration() {
    let mount = Mount::new();
    let server = |port: u16| {
        format!(
            "redis-server --port {port} --bind 127.0.0.1 --dir $MNT --cluster-enabled yes \
             --cluster-config-file nodes.conf --appendonly yes --save ''"
        )
    };
    // Not on the default ports, where a server of this machine may listen.
    let (first, second) = (free_port(), free_port());
    let out = mount.sh(&with_holder(
        &format!(
            "sh -c '{} & echo $! > $BESIDE/redis; until redis-cli -p {first} ping; do sleep 0.05; done; touch $BESIDE/ready; wait'",
            server(first).replace("''", "\"\"")
        ),
        &format!(
            "redis-cli -p {first} cluster addslotsrange 0 16383
            until redis-cli -p {first} set key value | grep -q OK; do sleep 0.05; done
            {} || :
            redis-cli -p {first} get key
            redis-cli -p {first} bgrewriteaof
            redis-cli -p {first} shutdown nosave || :
            wait $holder || :",
            server(second)
        ),
    ));
    assert!(
        out.contains("already used by a different Redis Cluster node"),
        "{out}"
    );
    assert!(out.contains("\nvalue\n"), "{out}");
    mount.nothing_left();
}

/// A port nobody listens on, whose cluster port (10,000 above) exists.
fn free_port() -> u16 {
    loop {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = socket.local_addr().expect("bound").port();
        if port < 55_000 {
            return port;
        }
    }
}

// ---- Programs that show that nothing else breaks ---------------------------------------------------

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn postgresql_lives_on_a_mount() {
    let mount = Mount::with(&["--allow-other"]);
    let port = free_port();
    let out = mount.sh(&format!(
        r#"
mkdir data sock && chown postgres: data sock && chmod 700 data
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as() {{ setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }}
as $bin/initdb -D $MNT/data -A trust -N > /dev/null
trap 'as $bin/pg_ctl -D $MNT/data -m immediate -w stop > /dev/null 2>&1 || :' EXIT
as $bin/pg_ctl -D $MNT/data -w -o "-p {port} -k $MNT/sock -h ''" -l $MNT/sock/log start > /dev/null || {{ cat sock/log; exit 1; }}
as $bin/pg_ctl -D $MNT/data -w -o "-p {port} -k $MNT/sock -h ''" -l $MNT/sock/log2 start 2>&1 | tail -1 || :
as $bin/pgbench -q -h $MNT/sock -p {port} -i -s 2 postgres > /dev/null 2>&1
as $bin/pgbench -h $MNT/sock -p {port} -c 4 -j 2 -T 3 postgres 2>/dev/null | grep 'failed'
as $bin/psql -h $MNT/sock -p {port} -Atc 'select (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)' postgres
as $bin/pg_ctl -D $MNT/data -m fast -w stop > /dev/null
as $bin/pg_controldata -D $MNT/data | grep 'cluster state'
"#
    ));
    assert!(out.contains("failed transactions: 0 "), "{out}");
    assert!(out.contains("\nt\n"), "{out}");
    assert!(out.contains("shut down"), "{out}");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn git_clones_push_in_parallel() {
    let mount = Mount::new();
    let out = mount.sh(r#"
export GIT_CONFIG_GLOBAL=$BESIDE/gitconfig GIT_CONFIG_NOSYSTEM=1
git config --global user.name t
git config --global user.email t@t
git config --global init.defaultBranch main
git config --global advice.detachedHead false
git init -q --bare hub
git clone -q hub seed 2>/dev/null
(cd seed && git commit -q --allow-empty -m 0 && git push -q origin main)
for clone in one two; do git clone -q hub $clone; done
work() {
    cd $1
    for n in $(seq 8); do
        echo $n > $1-$n && git add . && git commit -qm "$1 $n"
        until git push -q origin HEAD:main 2>/dev/null; do git pull -q --rebase origin main; done
    done
}
(work one) & first=$!
(work two) & second=$!
wait $first
wait $second
git -C hub gc -q --prune=now
git -C hub fsck --full --strict 2>&1 | grep -v '^Checking' || :
git -C hub rev-list --count main
git clone -q hub last && ls last | wc -l
"#);
    assert_eq!(out, "17\n16\n");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn lmdb_writers_wait_for_each_other() {
    let mount = Mount::new();
    mount.python(
        r#"
import lmdb, os
env = lmdb.open("db", map_size=1 << 24)
with env.begin(write=True) as txn:
    txn.put(b"n", b"0")
env.close()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            env = lmdb.open("db", map_size=1 << 24, sync=False)
            for _ in range(200):
                with env.begin(write=True) as txn:
                    txn.put(b"n", str(int(txn.get(b"n")) + 1).encode())
            env.close()
            status = 0
        finally:
            os._exit(status)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
env = lmdb.open("db")
with env.begin() as txn:
    assert txn.get(b"n") == b"800"
env.close()
"#,
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn pythons_own_tests_of_fcntl_pass() {
    let mount = Mount::new();
    let out = mount.sh("mkdir tmp && TMPDIR=$MNT/tmp /usr/bin/python3 -m test --tempdir $MNT/tmp test_fcntl test_largefile 2>&1");
    assert!(
        out.contains("2 tests OK") || out.contains("1 test OK"),
        "{out}"
    );
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn stress_ngs_lock_stressors_verify() {
    let mount = Mount::new();
    let out = mount.sh(
        "stress-ng --temp-path $MNT --flock 3 --lockf 3 --lockofd 3 --locka 3 --verify --timeout 5s --metrics-brief 2>&1",
    );
    assert!(out.contains("successful run completed"), "{out}");
    for stressor in ["flock", "lockf", "lockofd", "locka"] {
        assert!(out.contains(&format!(" {stressor} ")), "{out}");
    }
    assert!(!out.contains("fail:"), "{out}");
    mount.nothing_left();
}
