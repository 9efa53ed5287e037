//! Events under the names and fields of the kernel's tracepoints
//! (include/trace/events/filelock.h), by `tracing`, target `lockkeeper`.
//!
//! With the feature off nothing is compiled; with it on, an event that nobody
//! listens to costs one load of a cached answer.

#[cfg(feature = "tracing")]
pub(crate) use with_tracing::*;
#[cfg(not(feature = "tracing"))]
pub(crate) use without::*;

#[cfg(feature = "tracing")]
mod with_tracing {
    use tracing::{Level, event};

    use crate::error::LockError;
    use crate::lock::{LockInfo, LockKind, LockType};
    use crate::manager::FileId;
    use crate::owner::{FileOwner, Owner};
    use crate::range::Range;
    use crate::table::{LeaseBreak, Request};

    /// 0, or the negative errno, as the kernel's `ret` fields.
    fn ret<T>(result: &Result<T, LockError>) -> i32 {
        match result {
            Ok(_) => 0,
            Err(error) => -error.errno().raw(),
        }
    }

    fn type_name(lock_type: LockType) -> &'static str {
        match lock_type {
            LockType::Read => "F_RDLCK",
            LockType::Write => "F_WRLCK",
        }
    }

    fn flags(kind: LockKind) -> &'static str {
        match kind {
            LockKind::Posix => "FL_POSIX",
            LockKind::Ofd => "FL_POSIX|FL_OFDLCK",
            LockKind::Flock => "FL_FLOCK",
            LockKind::Lease => "FL_LEASE",
            LockKind::Delegation => "FL_DELEG",
            LockKind::Access => "FL_POSIX|FL_ACCESS",
        }
    }

    /// One event with the fields of the kernel's `filelock_lock` class.
    macro_rules! filelock_lock {
        ($name:literal, $file:expr, $info:expr, $ret:expr) => {{
            let (file, info): (FileId, &LockInfo) = ($file, $info);
            event!(
                name: $name,
                target: "lockkeeper",
                Level::TRACE,
                s_dev = file.device,
                i_ino = file.inode,
                fl_owner = ?info.owner,
                fl_pid = info.taken_by.0,
                fl_flags = flags(info.kind),
                fl_type = type_name(info.lock_type),
                fl_start = info.range.start(),
                fl_end = info.range.end(),
                ret = $ret,
            );
        }};
    }

    fn is_on() -> bool {
        tracing::enabled!(target: "lockkeeper", Level::TRACE)
    }

    pub(crate) fn set_lock(file: FileId, request: &Request, result: &Result<(), LockError>) {
        if !is_on() {
            return;
        }
        let info = request.info();
        if info.kind == LockKind::Flock {
            filelock_lock!("flock_lock_inode", file, &info, ret(result));
        } else {
            filelock_lock!("posix_lock_inode", file, &info, ret(result));
        }
    }

    pub(crate) fn wait_ended(file: FileId, request: &Request, result: &Result<(), LockError>) {
        if !is_on() {
            return;
        }
        let info = request.info();
        match info.kind {
            LockKind::Flock => filelock_lock!("flock_lock_inode", file, &info, ret(result)),
            LockKind::Lease => filelock_lock!("break_lease_unblock", file, &info, ret(result)),
            _ => filelock_lock!("fcntl_setlk", file, &info, ret(result)),
        }
    }

    pub(crate) fn unlock(
        file: FileId,
        owner: &Owner,
        range: Range,
        result: &Result<(), LockError>,
    ) {
        event!(
            name: "posix_lock_inode",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?owner,
            fl_type = "F_UNLCK",
            fl_start = range.start(),
            fl_end = range.end(),
            ret = ret(result),
        );
    }

    pub(crate) fn release(file: FileId, owner: &Owner) {
        event!(
            name: "locks_remove_posix",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?owner,
            fl_type = "F_UNLCK",
            ret = 0,
        );
    }

    pub(crate) fn deadlock(file: FileId, owner: &Owner, next: &LockInfo) {
        event!(
            name: "deadlock",
            target: "lockkeeper",
            Level::DEBUG,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?owner,
            waits_for = ?next.owner,
            ret = -crate::error::Errno::EDEADLK.raw(),
        );
    }

    pub(crate) fn add_lease(
        file: FileId,
        owner: &FileOwner,
        lock_type: LockType,
        result: &Result<(), LockError>,
    ) {
        event!(
            name: "generic_add_lease",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?owner,
            fl_type = type_name(lock_type),
            ret = ret(result),
        );
    }

    pub(crate) fn delete_lease(file: FileId, owner: &FileOwner, result: &Result<(), LockError>) {
        event!(
            name: "generic_delete_lease",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?owner,
            ret = ret(result),
        );
    }

    pub(crate) fn break_lease(file: FileId, lease_break: &LeaseBreak) {
        event!(
            name: "break_lease_block",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            fl_owner = ?lease_break.owner,
            fl_type = lease_break.target.map_or("F_UNLCK", type_name),
        );
    }

    pub(crate) fn time_out_leases(file: FileId, expired: &Result<u32, LockError>) {
        event!(
            name: "time_out_leases",
            target: "lockkeeper",
            Level::TRACE,
            s_dev = file.device,
            i_ino = file.inode,
            expired = expired.as_ref().ok(),
            ret = ret(expired),
        );
    }
}

#[cfg(not(feature = "tracing"))]
mod without {
    use crate::error::LockError;
    use crate::lock::{LockInfo, LockType};
    use crate::manager::FileId;
    use crate::owner::{FileOwner, Owner};
    use crate::range::Range;
    use crate::table::{LeaseBreak, Request};

    type Outcome = Result<(), LockError>;

    pub(crate) fn set_lock(_: FileId, _: &Request, _: &Outcome) {}
    pub(crate) fn wait_ended(_: FileId, _: &Request, _: &Outcome) {}
    pub(crate) fn unlock(_: FileId, _: &Owner, _: Range, _: &Outcome) {}
    pub(crate) fn release(_: FileId, _: &Owner) {}
    pub(crate) fn deadlock(_: FileId, _: &Owner, _: &LockInfo) {}
    pub(crate) fn add_lease(_: FileId, _: &FileOwner, _: LockType, _: &Outcome) {}
    pub(crate) fn delete_lease(_: FileId, _: &FileOwner, _: &Outcome) {}
    pub(crate) fn break_lease(_: FileId, _: &LeaseBreak) {}
    pub(crate) fn time_out_leases(_: FileId, _: &Result<u32, LockError>) {}
}
