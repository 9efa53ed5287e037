//! Listings that come from elsewhere than /proc/locks.

#![allow(clippy::unwrap_used)]

use std::io;
use std::path::Path;

use lockkeeper_script::directory::{Directory, Entry, FileIdentity, Listing, Options};
use lockkeeper_script::script::{ItemKind, LockType};
use lockkeeper_script::{Script, run};

fn report(listing: impl Listing + 'static, text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let listing = Box::new(listing);
    let mut directory = Directory::with_listing(folder.path(), options, listing).unwrap();
    let script = Script::parse("s.lk", text).unwrap();
    run(&script, &mut directory, &mut ()).to_string()
}

struct Silent;

impl Listing for Silent {
    fn entries(&mut self, file: &FileIdentity) -> io::Result<Vec<Entry>> {
        assert!(file.path.is_file() && file.inode > 0);
        Err(io::Error::other("this place does not tell its locks"))
    }
}

#[test]
fn a_place_that_does_not_list_its_locks_fails_the_first_line_that_asks() {
    assert_eq!(
        report(
            Silent,
            "A open f d rw\nA flock f shared\nheld d => flock read A"
        ),
        "FAIL s:3 cannot list the locks: this place does not tell its locks"
    );
    assert_eq!(report(Silent, "A open f d rw\nA flock f shared"), "PASS s");
}

/// Lists one lock of a process that is no actor, and one request of nobody.
struct Elsewhere;

impl Listing for Elsewhere {
    fn entries(&mut self, file: &FileIdentity) -> io::Result<Vec<Entry>> {
        assert_eq!(file.path.file_name(), Some(Path::new("d").as_os_str()));
        let lock = Entry {
            waiting: false,
            kind: ItemKind::Posix,
            lock_type: LockType::Write,
            start: 5,
            end: i64::MAX,
            pid: Some(1),
        };
        let request = Entry {
            waiting: true,
            start: 0,
            end: 9,
            ..lock.clone()
        };
        Ok(vec![lock, request])
    }
}

#[test]
fn processes_that_are_no_actors_are_shown_by_their_pid() {
    let text =
        "A open f d rw\nheld d => posix write 5,0 pid-1\nwaiting d => posix write 0,10 pid-1";
    assert_eq!(report(Elsewhere, text), "PASS s");
}
