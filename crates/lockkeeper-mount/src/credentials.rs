//! Acting as the caller: what a request does to the source, it does with the caller's rights.
//!
//! Two guards stand before every file, and both must agree. The kernel checks modes and access lists
//! itself (`default_permissions`, `FUSE_POSIX_ACL`), which covers paths it has cached and never asks
//! about. And the server, where it runs as root, takes the caller's user, group and supplementary
//! groups before it opens, creates or changes anything, so that the source's own file system checks
//! again, on attributes that are never stale, and applies what only it knows (set-gid folders, sticky
//! bits, protected links, default access lists, the stripping of set-id bits).
//!
//! An ordinary user's server cannot become anybody else and need not: all it touches, it touches with
//! the rights of the user who mounted.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, Gid};

use crate::request::Caller;
use crate::sys;

/// More groups than this are cut off; Linux's own limit.
const MOST_GROUPS: usize = 65_536;

/// Whether this process can act as its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Root, with the capabilities to become others.
    Switching,
    /// An ordinary user: always himself.
    Fixed,
}

impl Identity {
    /// Looks at what this process may do.
    pub fn detect() -> Identity {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
        let able =
            rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        if able && rustix::process::geteuid().is_root() {
            Identity::Switching
        } else {
            Identity::Fixed
        }
    }

    /// Takes on the rights of `caller` for as long as the result lives.
    ///
    /// # Errors
    /// `EPERM` if the rights cannot be taken on; nothing may be done on the caller's behalf then.
    pub fn act_as(self, caller: &Caller) -> Result<Acting, Errno> {
        let mut acting = Acting {
            uid: false,
            gid: false,
            groups: false,
        };
        if self == Identity::Fixed || (caller.uid == 0 && caller.gid == 0) {
            return Ok(acting);
        }
        if caller.uid != 0 {
            // Membership can grant (group modes) and take away (a group that is denied): the exact
            // set is needed, every time. Root needs none.
            rustix::thread::set_thread_groups(&supplementary_groups(caller))?;
            acting.groups = true;
        }
        acting.gid = caller.gid != 0;
        if acting.gid && !sys::set_fs_gid(caller.gid) {
            return Err(Errno::PERM);
        }
        acting.uid = caller.uid != 0;
        if acting.uid && !sys::set_fs_uid(caller.uid) {
            return Err(Errno::PERM);
        }
        Ok(acting)
    }
}

/// Gives the thread's own rights back when dropped.
#[derive(Debug)]
#[must_use]
pub struct Acting {
    uid: bool,
    gid: bool,
    groups: bool,
}

impl Drop for Acting {
    fn drop(&mut self) {
        let mut ok = true;
        if self.uid {
            ok &= sys::set_fs_uid(0);
        }
        if self.gid {
            ok &= sys::set_fs_gid(0);
        }
        if self.groups {
            ok &= rustix::thread::set_thread_groups(&[]).is_ok();
        }
        if !ok {
            // Going on with another user's rights would serve the next caller with them.
            tracing::error!("cannot return to the server's own rights; stopping at once");
            std::process::abort();
        }
    }
}

/// Sets the umask that the next creation on this thread applies.
///
/// The kernel leaves it to us (`FUSE_DONT_MASK`), since a default access list overrides it and only
/// the source knows of one. The thread must have [`sys::own_umask`].
pub fn set_umask(umask: u32) {
    rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
}

/// The supplementary groups of the caller, who is parked in the call and cannot change them.
fn supplementary_groups(caller: &Caller) -> Vec<Gid> {
    if caller.tid != 0
        && let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", caller.tid))
        && let Some(groups) = parse_groups(&status)
    {
        return groups;
    }
    // A caller of a pid namespace that we do not see: use what the kernel told.
    caller.group_hint.map(Gid::from_raw).into_iter().collect()
}

fn parse_groups(status: &str) -> Option<Vec<Gid>> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))?;
    line.split_ascii_whitespace()
        .take(MOST_GROUPS)
        .map(|gid| gid.parse().ok().map(Gid::from_raw))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_file() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        let groups: Vec<u32> = parse_groups(status)
            .expect("has groups")
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        assert_eq!(groups, [4, 24, 1000]);
        assert_eq!(
            parse_groups("Groups:\t \n").map(|groups| groups.len()),
            Some(0)
        );
        assert_eq!(parse_groups("Name:\tx\n"), None);
        assert_eq!(parse_groups("Groups:\tmany\n"), None);
    }
}
