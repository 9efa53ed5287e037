//! The file system on a real mount: what programs expect of one.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use support::{TestMount, set_mode, sh, sh_as};

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("reads")
}

fn open_rw(path: impl AsRef<Path>) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("opens")
}

/// Every way that data can go must behave the same.
fn on_each_data_path(test: impl Fn(&TestMount)) {
    for (passthrough, mandatory) in [(true, false), (false, false), (false, true)] {
        let mount = TestMount::with(|options| {
            options.passthrough = passthrough;
            options.mandatory = mandatory;
        });
        println!("data path {:?}", mount.settled.data_path);
        test(&mount);
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn what_is_written_is_read_on_either_side() {
    on_each_data_path(|mount| {
        fs::write(mount.path("a"), "first").expect("writes");
        assert_eq!(read(mount.source("a")), "first");
        let mut file = open_rw(mount.path("a"));
        file.write_all(b"FIRST and more").expect("writes");
        file.sync_all().expect("fsync");
        assert_eq!(read(mount.source("a")), "FIRST and more");
        file.set_len(5).expect("truncates");
        assert_eq!(fs::metadata(mount.path("a")).expect("stat").len(), 5);
        file.seek(SeekFrom::Start(0)).expect("seeks");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("reads");
        assert_eq!(text, "FIRST");
        fs::write(mount.path("a"), "anew").expect("O_TRUNC");
        assert_eq!(read(mount.source("a")), "anew");
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn appending_goes_to_the_end_whatever_the_offset() {
    on_each_data_path(|mount| {
        let path = mount.path("log");
        let mut first = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .expect("opens");
        let mut second = OpenOptions::new().append(true).open(&path).expect("opens");
        for n in 0..100 {
            writeln!(first, "first {n}").expect("writes");
            writeln!(second, "second {n}").expect("writes");
        }
        assert_eq!(read(mount.source("log")).lines().count(), 200);
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn large_sparse_files_keep_their_holes() {
    on_each_data_path(|mount| {
        let file = open_rw(mount.path("sparse"));
        let far = 5 << 30;
        file.write_all_at(b"end", far).expect("writes beyond 4 GiB");
        assert_eq!(file.metadata().expect("stat").len(), far + 3);
        assert!(file.metadata().expect("stat").blocks() < 1000);
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).expect("SEEK_DATA");
        assert!(data > 0 && data <= far, "{data}");
        assert_eq!(
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)),
            Ok(0)
        );
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 16).expect("fallocate");
        assert!(file.metadata().expect("stat").blocks() >= 128);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 0, 1 << 16).expect("punches a hole");
        assert!(file.metadata().expect("stat").blocks() < 128);
        let copy = open_rw(mount.path("copy"));
        let mut from = far;
        let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, None, 3);
        assert_eq!(copied, Ok(3));
        assert_eq!(read(mount.source("copy")), "end");
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn shared_mappings_reach_the_file() {
    on_each_data_path(|mount| {
        fs::write(mount.path("mapped"), vec![b'.'; 8192]).expect("writes");
        // dd writes; python is not everywhere. cmp maps both files on most systems.
        let script = "cp mapped other && cmp mapped other && cat mapped other | wc -c";
        assert_eq!(sh(&mount.path(""), script).trim(), "16384\n[0]");
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_nameless_file_can_be_given_a_name() {
    on_each_data_path(|mount| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(
            rustix::fs::open(mount.path(""), flags, Mode::from_raw_mode(0o640)).expect("O_TMPFILE"),
        );
        file.write_all_at(b"nameless", 0).expect("writes");
        assert_eq!(file.metadata().expect("stat").nlink(), 0);
        assert_eq!(fs::read_dir(mount.path("")).expect("lists").count(), 0);
        use std::os::fd::AsRawFd;
        let old = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            old,
            rustix::fs::CWD,
            mount.path("named"),
            AtFlags::SYMLINK_FOLLOW,
        )
        .expect("links");
        assert_eq!(read(mount.path("named")), "nameless");
        // With O_EXCL it can not.
        let flags = flags | OFlags::EXCL;
        let file = rustix::fs::open(mount.path(""), flags, Mode::RUSR).expect("O_TMPFILE|O_EXCL");
        let old = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = rustix::fs::linkat(
            rustix::fs::CWD,
            old,
            rustix::fs::CWD,
            mount.path("never"),
            AtFlags::SYMLINK_FOLLOW,
        );
        assert_eq!(linked, Err(Errno::NOENT));
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn an_unlinked_open_file_lives_on() {
    on_each_data_path(|mount| {
        let file = open_rw(mount.path("doomed"));
        file.write_all_at(b"still here", 0).expect("writes");
        fs::remove_file(mount.path("doomed")).expect("unlinks");
        let mut text = [0; 10];
        file.read_exact_at(&mut text, 0).expect("reads");
        assert_eq!(&text, b"still here");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        file.set_len(2).expect("truncates");
        assert_eq!(file.metadata().expect("fstat").len(), 2);
        fs::write(mount.path("doomed"), "another").expect("the name is free");
        drop(file);
        assert_eq!(read(mount.source("doomed")), "another");
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn names_links_and_renames() {
    let mount = TestMount::new();
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, "a").expect("writes");
    fs::write(&b, "b").expect("writes");
    let rename = |flags| rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).expect("exchanges");
    assert_eq!((read(&a), read(&b)), ("b".into(), "a".into()));
    fs::hard_link(&a, mount.path("link")).expect("links");
    let (one, two) = (
        fs::metadata(&a).expect("stat"),
        fs::metadata(mount.path("link")).expect("stat"),
    );
    assert_eq!((one.ino(), one.nlink()), (two.ino(), 2));
    assert_eq!(
        one.ino(),
        fs::metadata(mount.source("a")).expect("stat").ino()
    );
    symlink("a", mount.path("soft")).expect("symlinks");
    assert_eq!(
        fs::read_link(mount.path("soft"))
            .expect("readlink")
            .to_str(),
        Some("a")
    );
    assert_eq!(read(mount.path("soft")), "b");
    let long = "n".repeat(255);
    fs::write(mount.path(&long), "").expect("255 bytes are a name");
    let longer = fs::write(mount.path(&"n".repeat(256)), "").expect_err("256 are not");
    assert_eq!(longer.raw_os_error(), Some(libc::ENAMETOOLONG));
    let fifo = mount.path("fifo");
    let node = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, node, Mode::RUSR, 0).expect("mkfifo");
    assert!(fs::symlink_metadata(&fifo).expect("stat").mode() & 0o170_000 == 0o010_000);
    fs::create_dir(mount.path("dir")).expect("mkdir");
    fs::write(mount.path("dir/inner"), "").expect("writes");
    assert!(fs::remove_dir(mount.path("dir")).is_err(), "not empty");
    fs::rename(mount.path("dir"), mount.path("moved")).expect("moves");
    assert!(mount.path("moved/inner").exists());
    let mut deep = String::from("d");
    for _ in 0..100 {
        fs::create_dir(mount.path(&deep)).expect("mkdir");
        deep.push_str("/d");
    }
    fs::remove_dir_all(mount.path("d")).expect("removes the tree");
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn attributes_of_every_sort() {
    let mount = TestMount::new();
    let path = mount.path("f");
    let file = open_rw(&path);
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_times(fs::FileTimes::new().set_modified(then).set_accessed(then))
        .expect("utimens");
    let stat = fs::metadata(mount.source("f")).expect("stat");
    assert_eq!(
        (stat.mtime(), stat.mtime_nsec()),
        (1_000_000_000, 123_456_789)
    );
    set_mode(&path, 0o4751);
    assert_eq!(
        fs::metadata(&path).expect("stat").permissions().mode() & 0o7777,
        0o4751
    );
    rustix::fs::setxattr(&path, "user.key", b"value", XattrFlags::CREATE).expect("setxattr");
    let again = rustix::fs::setxattr(&path, "user.key", b"value", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    let mut value = [0_u8; 16];
    assert_eq!(rustix::fs::getxattr(&path, "user.key", &mut value), Ok(5));
    assert_eq!(
        rustix::fs::getxattr(&path, "user.key", &mut [0_u8; 3]),
        Err(Errno::RANGE)
    );
    let mut names = [0_u8; 64];
    let len = rustix::fs::listxattr(&path, &mut names).expect("listxattr");
    assert!(
        names[..len]
            .split(|&byte| byte == 0)
            .any(|name| name == b"user.key")
    );
    rustix::fs::removexattr(&path, "user.key").expect("removexattr");
    assert_eq!(
        rustix::fs::getxattr(&path, "user.key", &mut value),
        Err(Errno::NODATA)
    );
    let (here, there) = (
        rustix::fs::statvfs(mount.path("")).expect("statvfs"),
        rustix::fs::statvfs(mount.source("")).expect("statvfs"),
    );
    assert_eq!(
        (here.f_blocks, here.f_namemax),
        (there.f_blocks, there.f_namemax)
    );
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn folders_list_everything_once_with_dots() {
    let mount = TestMount::new();
    let names: BTreeSet<String> = (0..5000).map(|n| format!("file-{n:05}")).collect();
    for name in &names {
        fs::write(mount.source(name), "").expect("writes");
    }
    let listed: Vec<String> = fs::read_dir(mount.path(""))
        .expect("lists")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
    let with_dots = sh(&mount.path(""), "ls -a | head -2; ls -la | wc -l");
    assert_eq!(with_dots, ".\n..\n5003\n[0]");
    // seekdir: any cookie continues where it was given out.
    let folder = File::open(mount.path("")).expect("opens");
    let mut all = Vec::new();
    let mut space = [std::mem::MaybeUninit::uninit(); 4096];
    let mut entries = rustix::fs::RawDir::new(&folder, &mut space);
    while let Some(entry) = entries.next() {
        let entry = entry.expect("entry");
        all.push((entry.file_name().to_owned(), entry.next_entry_cookie()));
    }
    assert_eq!(all.len(), names.len() + 2);
    for at in [0, 1, 17, 2500, all.len() - 2] {
        rustix::fs::seek(&folder, rustix::fs::SeekFrom::Start(all[at].1)).expect("seeks");
        let mut entries = rustix::fs::RawDir::new(&folder, &mut space);
        let next = entries.next().expect("more").expect("entry");
        assert_eq!(next.file_name(), &*all[at + 1].0, "after entry {at}");
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_hundred_thousand_entries_can_be_listed_with_attributes_and_removed() {
    let mount = TestMount::new();
    fs::create_dir(mount.source("many")).expect("mkdir");
    for n in 0..100_000 {
        fs::write(mount.source(&format!("many/{n}")), "").expect("writes");
    }
    assert_eq!(sh(&mount.path("many"), "ls -l | wc -l"), "100001\n[0]");
    assert_eq!(sh(&mount.path(""), "rm -r many; ls | wc -l"), "0\n[0]");
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_read_only_mount_changes_nothing() {
    let mount = TestMount::with(|options| {
        fs::create_dir(&options.source).expect("mkdir");
        fs::write(options.source.join("f"), "kept").expect("writes");
        options.read_only = true;
    });
    assert_eq!(read(mount.path("f")), "kept");
    let denied = fs::write(mount.path("f"), "x").expect_err("read-only");
    assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    assert_eq!(read(mount.source("f")), "kept");
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn nothing_is_left_open_when_everything_is_closed() {
    let mount = TestMount::new();
    for n in 0..200 {
        let file = open_rw(mount.path(&format!("f{n}")));
        file.write_all_at(b"x", 0).expect("writes");
    }
    fs::read_dir(mount.path("")).expect("lists").for_each(drop);
    mount.wait_for("handles", |mount| mount.counts().handles == 0);
}

/// Runs the same script as the same user at the source and on the mount, and wants the same outcome.
fn agrees(mount: &TestMount, user: u32, groups: &str, setup: &str, script: &str) -> bool {
    // Names of groups and times are the same in both places; each gets a tree of its own.
    let outcome = |folder: &Path| {
        fs::create_dir(folder).expect("mkdir");
        set_mode(folder, 0o755);
        let prepared = sh(folder, &format!("set -e; umask 022; {setup}"));
        assert!(prepared.ends_with("[0]"), "{prepared}");
        sh_as(user, groups, folder, script)
    };
    let there = outcome(&mount.source("there"));
    let here = outcome(&mount.path("here"));
    let differs = here != there;
    if differs {
        println!(
            "as {user} ({groups}), after {setup}: {script}\n  source: {there:?}\n  mount:  {here:?}"
        );
    }
    fs::remove_dir_all(mount.source("there")).expect("removes");
    fs::remove_dir_all(mount.path("here")).expect("removes");
    !differs
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn no_user_gets_at_what_the_source_denies_him() {
    if std::env::var_os(AS_NOBODY).is_some() {
        return; // That user cannot become others; the run as root does.
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "it takes root to become other users"
    );
    // Without the tools both sides would agree on "not found".
    assert!(sh(Path::new("/"), "command -v setfacl setfattr setpriv").ends_with("[0]"));
    for passthrough in [true, false] {
        let mount = TestMount::with(|options| {
            options.allow_other = true;
            options.passthrough = passthrough;
        });
        let mut all = true;
        let look = "stat -c '%n %A %u %g %s' * 2>&1";
        for (user, groups, setup, script) in [
            (
                1001,
                "",
                "echo x > f; chmod 600 f",
                "cat f; echo y >> f; rm -f f; ls",
            ),
            (
                1001,
                "",
                "echo x > f; chmod 644 f",
                "cat f; echo y > f; chmod 600 f; chown 1001 f; touch -d 2000-01-01 f",
            ),
            (
                1001,
                "",
                "echo x > f; chmod 602 f",
                "echo yes > f; cat f; truncate -s 0 f; stat -c %s f",
            ),
            // A group that is denied what others may.
            (
                1001,
                "2000",
                "echo x > f; chgrp 2000 f; chmod 604 f",
                "cat f",
            ),
            (1001, "", "echo x > f; chgrp 2000 f; chmod 604 f", "cat f"),
            // A supplementary group that may.
            (
                1001,
                "2000,3000",
                "echo x > f; chgrp 2000 f; chmod 660 f",
                "cat f; echo y >> f; cat f",
            ),
            (
                1001,
                "3000",
                "echo x > f; chgrp 2000 f; chmod 660 f",
                "cat f; echo y >> f; cat f",
            ),
            // A locked folder, and what is in it.
            (
                1001,
                "",
                "mkdir d; echo x > d/f; chmod 700 d",
                "cat d/f; ls d; cd d",
            ),
            (
                1001,
                "",
                "mkdir d; echo x > d/f; chmod 711 d",
                "cat d/f; ls d",
            ),
            (
                1001,
                "",
                "mkdir d; echo x > d/f; chmod 744 d",
                "cat d/f; ls d 2>/dev/null",
            ),
            // Sticky.
            (
                1001,
                "",
                "mkdir d; chmod 1777 d; echo x > d/f",
                "rm -f d/f; mv d/f d/g; echo y > d/own; rm d/own; ls d",
            ),
            (
                1001,
                "",
                "mkdir d; chmod 1777 d; echo x > d/f; chmod 666 d/f; mkfifo -m 666 d/p",
                "echo y > d/f; cat d/f; echo z >> d/f; true <> d/p",
            ),
            (
                1001,
                "2000",
                "mkdir d; chgrp 2000 d; chmod 1770 d; echo x > d/f; chown 1002 d/f; mkdir d/g; chown 1002 d/g",
                "rm -f d/f; mv d/f d/h; rmdir d/g; mv d/g d/i; ln d/f d/k; ls d",
            ),
            (
                1001,
                "",
                "mkdir d e; chmod 1777 d; chmod 777 e; mkdir d/o e/o; chown 1001 d/o; chown 1002 e/o",
                "mv d/o e/own; mv e/o d/; mv -T d/o e/o; ls d e",
            ),
            // What only a supplementary group allows, the last of them.
            (
                1001,
                "3000,4000,2000",
                "mkdir d; chgrp 2000 d; chmod 2770 d; echo x > d/o; chmod 640 d/o",
                "cd d; umask 007; cat o; echo y > f; mkdir g; mv o g/; rm g/o; ln f h; chgrp 4000 f; chgrp 5000 f; stat -c '%n %A %u %g' * g",
            ),
            (
                1001,
                "3000",
                "mkdir d; chgrp 2000 d; chmod 2770 d; echo x > d/o",
                "cat d/o; echo y > d/f; mkdir d/g; rm -f d/o; ls d",
            ),
            // New files: owner, group, umask, set-group-id folders.
            (
                1001,
                "2000",
                "mkdir d; chmod 777 d",
                "cd d; umask 027; echo x > f; mkdir g; mkfifo p; ln -s f s; stat -c '%n %A %u %g' *",
            ),
            (
                1001,
                "2000",
                "mkdir d; chgrp 2000 d; chmod 2775 d",
                "cd d; umask 002; echo x > f; mkdir g; touch g/h; stat -c '%n %A %u %g' * g/h",
            ),
            (
                1001,
                "",
                "mkdir d; chgrp 2000 d; chmod 2777 d",
                "cd d; echo x > f; chmod 2755 f; mkdir g; stat -c '%n %A %u %g' *",
            ),
            // Set-id bits go when somebody else writes, truncates or gives away.
            (
                1001,
                "",
                "cp /bin/true f; chmod 6777 f",
                "echo >> f; stat -c %A f",
            ),
            (
                1001,
                "",
                "cp /bin/true f; chmod 6777 f",
                "truncate -s 1 f; stat -c %A f",
            ),
            (
                1001,
                "",
                "cp /bin/true f; chmod 6777 f",
                "true > f; stat -c %A f",
            ),
            (
                1001,
                "2000",
                "mkdir d; chmod 777 d",
                "cd d; echo x > f; chgrp 2000 f; chmod 2755 f; chgrp 3000 f; stat -c '%A %g' f",
            ),
            // Extended attributes and special files.
            (
                1001,
                "",
                "echo x > f; chmod 644 f",
                "setfattr -n user.a -v b f; setfattr -n trusted.a -v b f; getfattr -d -m - f",
            ),
            (
                1001,
                "",
                "mkdir d; chmod 777 d",
                "mknod d/null c 1 3; mknod d/p p; stat -c %A d/p",
            ),
            // Access lists.
            (
                1001,
                "",
                "echo x > f; chmod 600 f; setfacl -m u:1001:r f",
                "cat f; echo y >> f",
            ),
            (
                1002,
                "",
                "echo x > f; chmod 600 f; setfacl -m u:1001:r f",
                "cat f",
            ),
            (
                1001,
                "2000",
                "echo x > f; chmod 600 f; setfacl -m g:2000:rw f",
                "echo y >> f; cat f; setfacl -b f",
            ),
            (
                1001,
                "",
                "echo x > f; chmod 666 f; setfacl -m u:1001:- f",
                "cat f; echo y >> f",
            ),
            (
                1001,
                "",
                "mkdir d; chmod 777 d; setfacl -d -m u:1002:rw,g::rx,o::- d",
                "cd d; umask 0; echo x > f; mkdir g; getfacl -c f g",
            ),
            (
                1001,
                "",
                "mkdir d; chmod 777 d; echo x > f; chmod 600 f",
                &format!("ln f d/f; {look}"),
            ),
        ] {
            all &= agrees(&mount, user, groups, setup, script);
        }
        assert!(all, "see above");
    }
}

/// Set for the run of all tests as an ordinary user.
const AS_NOBODY: &str = "LOCKKEEPER_TESTS_AS_NOBODY";

/// /dev/fuse, open to everybody as most systems have it; dropped, it is as it was.
struct OpenDevice(u32);

impl OpenDevice {
    fn to_everybody() -> OpenDevice {
        let device = fs::metadata("/dev/fuse").expect("there is a FUSE device");
        let before = device.mode() & 0o7777;
        set_mode(Path::new("/dev/fuse"), before | 0o666);
        OpenDevice(before)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        set_mode(Path::new("/dev/fuse"), self.0);
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn an_ordinary_user_has_the_same_file_system() {
    const NOBODY: u32 = 65_534;
    if std::env::var_os(AS_NOBODY).is_some() {
        return; // This is that user, and all tests are being run.
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "it takes root to become another user"
    );
    let _open = OpenDevice::to_everybody();
    // A copy of this program where he can reach it, run as him. Made by cp: a descriptor of ours that is
    // open for writing could be inherited by what other tests start, and then it may not be run.
    let temp = tempfile::tempdir().expect("temp folder");
    set_mode(temp.path(), 0o755);
    let copy = temp.path().join("tests");
    let program = std::env::current_exe().expect("has a path");
    assert_eq!(
        sh(temp.path(), &format!("cp '{}' tests", program.display())),
        "[0]"
    );
    set_mode(&copy, 0o755);
    let outcome = sh_as(
        NOBODY,
        "",
        Path::new("/"),
        &format!(
            "{AS_NOBODY}=1 RUST_BACKTRACE=0 {} --ignored --test-threads 1",
            copy.display()
        ),
    );
    assert!(outcome.ends_with("[0]"), "{outcome}");
    println!("{outcome}");
}
