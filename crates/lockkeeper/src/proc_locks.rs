//! The text of /proc/locks (proc(5)), as the kernel's `lock_get_status` prints
//! it, so that lslocks(8) and its like can read it.
//!
//! A granted lock is a line with an ordinal; the requests that wait for it follow
//! with the same ordinal, `-> `, and one more space for each step that they hang
//! further down:
//!
//! ```text
//! 1: POSIX  ADVISORY  WRITE 4711 08:01:131 0 EOF
//! 1: -> POSIX  ADVISORY  READ 4712 08:01:131 100 199
//! 1:  -> POSIX  ADVISORY  WRITE 4713 08:01:131 150 150
//! 2: OFDLCK ADVISORY  READ -1 08:01:132 0 EOF
//! 3: FLOCK  ADVISORY  WRITE 4714 08:01:132 0 EOF
//! 4: LEASE  BREAKING  UNLCK 4715 08:01:133 0 EOF
//! 4: -> LEASE  BREAKER   WRITE 4716 <none>:0 0 EOF
//! ```

use core::fmt;

use crate::lock::{LockInfo, LockKind, LockType};
use crate::manager::FileId;
use crate::owner::{Owner, PidView};
use crate::range::Range;
use crate::table::{BlockedBy, Snapshot};

/// One file's lines.
pub struct Listing<'a> {
    /// Which file.
    pub file: FileId,
    /// Its state.
    pub snapshot: &'a Snapshot,
    /// What the reader can see: locks of processes that he cannot see are left
    /// out with all that waits for them, and waiters that he cannot see have the
    /// pid 0, as the kernel does.
    pub view: &'a dyn PidView,
    /// The ordinal of the lock before the first.
    pub after: usize,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = &self.snapshot.waiting;
        // Waiters stand in the order of the tree, those of one lock together.
        let mut next = 0;
        for (index, granted) in self.snapshot.granted.iter().enumerate() {
            let ordinal = self.after + index + 1;
            let target = granted.breaking.unwrap_or(Some(granted.lock.lock_type));
            let state = match granted.breaking {
                Some(_) => "BREAKING ",
                None => "ACTIVE   ",
            };
            let pid = self.pid(&granted.lock);
            if let Some(pid) = pid {
                self.line(f, ordinal, None, &granted.lock, state, target, pid)?;
            }
            while let Some(waiter) = waiting.get(next) {
                if waiter.depth == 0 && waiter.blocked_by != BlockedBy::Lock(index) {
                    break;
                }
                next += 1;
                if pid.is_none() {
                    continue;
                }
                self.line(
                    f,
                    ordinal,
                    Some(waiter.depth),
                    &waiter.lock,
                    "BREAKER  ",
                    Some(waiter.lock.lock_type),
                    self.pid(&waiter.lock).unwrap_or(0),
                )?;
            }
        }
        Ok(())
    }
}

impl Listing<'_> {
    #[expect(clippy::too_many_arguments, reason = "the fields of a line")]
    fn line(
        &self,
        f: &mut fmt::Formatter<'_>,
        ordinal: usize,
        depth: Option<u32>,
        lock: &LockInfo,
        lease_state: &str,
        target: Option<LockType>,
        pid: i32,
    ) -> fmt::Result {
        write!(f, "{ordinal}: ")?;
        if let Some(depth) = depth {
            write!(f, "{:>1$}", "-> ", depth as usize + 3)?;
        }
        match lock.kind {
            LockKind::Posix => f.write_str("POSIX  ADVISORY  ")?,
            LockKind::Ofd => f.write_str("OFDLCK ADVISORY  ")?,
            LockKind::Access => f.write_str("ACCESS ADVISORY  ")?,
            LockKind::Flock => f.write_str("FLOCK  ADVISORY  ")?,
            LockKind::Lease => write!(f, "LEASE  {lease_state} ")?,
            LockKind::Delegation => write!(f, "DELEG  {lease_state} ")?,
        }
        let type_name = match target {
            None => "UNLCK",
            Some(LockType::Read) => "READ",
            Some(LockType::Write) => "WRITE",
        };
        let is_opener = depth.is_some() && lock.kind == LockKind::Lease;
        if is_opener {
            write!(f, "{type_name} {pid} <none>:0 ")?;
        } else {
            write!(f, "{type_name} {pid} {} ", self.file)?;
        }
        match lock.kind {
            LockKind::Posix | LockKind::Ofd | LockKind::Access => writeln!(f, "{}", lock.range),
            _ => writeln!(f, "{}", Range::WHOLE),
        }
    }

    /// The pid that the line shows: the owner's, or for locks of a description
    /// the pid of who took it; -1 for OFD.
    fn pid(&self, lock: &LockInfo) -> Option<i32> {
        match (&lock.owner, lock.kind) {
            (Owner::Process(process), _) => self.view.pid(*process),
            (Owner::Remote(remote), _) => Some(remote.number()),
            (Owner::OpenFile(_), LockKind::Ofd | LockKind::Access) => Some(-1),
            // Of an unknown process the kernel would say 0 and leave the line
            // out; a lock that nobody sees serves nobody.
            (Owner::OpenFile(_), _) if lock.taken_by.0 == 0 => Some(-1),
            (Owner::OpenFile(_), _) => self.view.pid(lock.taken_by),
        }
    }
}
