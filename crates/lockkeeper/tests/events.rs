//! Events under the names and fields of the kernel's tracepoints.
//!
//! A subscriber for all threads, so all is one test, in a binary of its own.

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::table::Waits;
use lockkeeper::{
    BreakScope, CallbackId, FileId, LockManager, LockType, OpenFileId, Openers, ProcessId, Range,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const R: LockType = LockType::Read;
const W: LockType = LockType::Write;

/// Keeps each event as a line: its name and its fields.
struct Keep;

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0 += &format!(" {field}={value}");
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "lockkeeper"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().name().to_owned());
        event.record(&mut line);
        KEPT.lock().expect("not poisoned").push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The lines since the last call.
fn kept() -> Vec<String> {
    std::mem::take(&mut *KEPT.lock().expect("not poisoned"))
}

#[test]
fn events_have_the_names_and_fields_of_the_kernels_tracepoints() {
    tracing::subscriber::set_global_default(Keep).expect("the only one");
    let manager = LockManager::builder().manual_clock().build();
    let file = manager.file(FileId::new(0x801, 131));
    let ten = Range::new(0, 9).expect("in order");
    let lines = |lines: &[&str]| assert_eq!(kept(), lines);

    let posix = file.posix(ProcessId(1)).taken_by(ProcessId(1));
    posix.try_lock(W, ten).expect("free");
    lines(&[
        "posix_lock_inode s_dev=2049 i_ino=131 fl_owner=Process(ProcessId(1)) fl_pid=1 \
         fl_flags=FL_POSIX fl_type=F_WRLCK fl_start=0 fl_end=9 ret=0",
    ]);

    let ofd = file.ofd(OpenFileId(2));
    assert!(ofd.try_lock(R, Range::WHOLE).is_err());
    lines(&[
        "posix_lock_inode s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(2)) fl_pid=0 \
         fl_flags=FL_POSIX|FL_OFDLCK fl_type=F_RDLCK fl_start=0 fl_end=9223372036854775807 ret=-11",
    ]);

    ofd.lock_callback(CallbackId(1), R, ten, |_| {})
        .expect("it waits");
    kept(); // What it tells on the way to sleep is not fixed.
    posix.unlock(ten).expect("whole");
    let told = kept();
    assert!(
        told.contains(
            &"fcntl_setlk s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(2)) fl_pid=0 \
             fl_flags=FL_POSIX|FL_OFDLCK fl_type=F_RDLCK fl_start=0 fl_end=9 ret=0"
                .to_owned()
        ),
        "{told:#?}"
    );
    assert!(
        told.contains(
            &"posix_lock_inode s_dev=2049 i_ino=131 fl_owner=Process(ProcessId(1)) \
             fl_type=F_UNLCK fl_start=0 fl_end=9 ret=0"
                .to_owned()
        ),
        "{told:#?}"
    );

    let flock = file.flock(OpenFileId(3));
    flock.try_lock(R).expect("free");
    lines(&[
        "flock_lock_inode s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(3)) fl_pid=0 \
         fl_flags=FL_FLOCK fl_type=F_RDLCK fl_start=0 fl_end=9223372036854775807 ret=0",
    ]);

    let lease = file.lease(OpenFileId(4));
    lease.set(W, Openers::default()).expect("alone");
    lines(&[
        "generic_add_lease s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(4)) \
         fl_type=F_WRLCK ret=0",
    ]);
    let opening = file.opening(OpenFileId(5), R, BreakScope::All);
    assert!(opening.try_break().is_err());
    lines(&[
        "break_lease_block s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(4)) \
         fl_type=F_RDLCK",
    ]);
    manager.advance(Duration::from_secs(45));
    lines(&["time_out_leases s_dev=2049 i_ino=131 expired=1 ret=0"]);
    lease.unlock().expect("weakened, not gone");
    lines(&["generic_delete_lease s_dev=2049 i_ino=131 fl_owner=OpenFile(OpenFileId(4)) ret=0"]);

    let other = manager.file(FileId::new(0x801, 132));
    posix.try_lock(W, ten).expect_err("the reader has it");
    file.release_owner(&OpenFileId(2).into(), Waits::Interrupt);
    posix.try_lock(W, ten).expect("free");
    other.posix(ProcessId(2)).try_lock(W, ten).expect("free");
    let first = other.posix(ProcessId(1));
    first
        .lock_callback(CallbackId(2), W, ten, |_| {})
        .expect("it waits");
    kept();
    let second = file.posix(ProcessId(2));
    let refused = second.lock_callback(CallbackId(3), W, ten, |_| {});
    assert!(refused.is_ok(), "told by its callback");
    let told = kept();
    assert!(
        told.contains(
            &"deadlock s_dev=2049 i_ino=131 fl_owner=Process(ProcessId(2)) \
             waits_for=Process(ProcessId(1)) ret=-35"
                .to_owned()
        ),
        "{told:#?}"
    );
}
