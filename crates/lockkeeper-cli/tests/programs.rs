//! Real programs on a mount, of those that pass also where nobody is excluded: they show that nothing else
//! breaks. Those that show exclusion are in `exclusion`.

mod support;

use support::{Mount, free_port};

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
