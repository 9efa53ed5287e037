//! Tells an OFD request from a POSIX one: by looking at the caller, who is parked in the call.
//!
//! On the wire the two are alike. But the caller's thread sits in fcntl(2) until it is answered, and
//! `/proc/TID/syscall` shows the command it called with. That needs the right to trace the caller
//! (root has it); it costs some 8 µs, so [`Owners`](crate::owners::Owners) asks only for an owner and
//! handle it has not seen together.

use std::fmt::Write as _;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::owners::OwnerKind;

/// fcntl(2) on this machine, and on its 32-bit sibling (`fcntl`, `fcntl64`), whose programs may run
/// here too. A thread that waits for the answer to a lock request is in no other call.
const FCNTL: [libc::c_long; 3] = [libc::SYS_fcntl, 55, 221];

/// How often to look again at a caller who has sent the request but not yet gone to sleep.
const TRIES: u32 = 200;

/// Reads what callers are doing, as long as it is allowed to.
#[derive(Debug)]
pub struct CallerProbe {
    allowed: AtomicBool,
}

impl Default for CallerProbe {
    fn default() -> Self {
        CallerProbe {
            allowed: AtomicBool::new(true),
        }
    }
}

impl CallerProbe {
    /// A probe that never looks, as where `/proc` is closed to it.
    #[cfg(test)]
    pub fn blind() -> CallerProbe {
        CallerProbe {
            allowed: AtomicBool::new(false),
        }
    }

    /// The kind of owner that thread `tid` names in the call it is parked in; `None` if that cannot
    /// be known.
    pub fn owner_kind(&self, tid: u32) -> Option<OwnerKind> {
        if tid == 0 || !self.allowed.load(Ordering::Relaxed) {
            return None;
        }
        let mut path = String::with_capacity(32);
        let _ = write!(path, "/proc/{tid}/syscall");
        let mut text = [0_u8; 256];
        for _ in 0..TRIES {
            let read = std::fs::File::open(&path).and_then(|mut file| file.read(&mut text));
            match read {
                Ok(len) => match parse(&text[..len]) {
                    Parked::In(kind) => return Some(kind),
                    Parked::Elsewhere => return None,
                    Parked::NotYet => std::thread::yield_now(),
                },
                // Denied for this caller; maybe not for another one of our own.
                Err(error) => {
                    tracing::debug!(tid, %error, "cannot see the caller's system call");
                    return None;
                }
            }
        }
        None
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Parked {
    In(OwnerKind),
    Elsewhere,
    NotYet,
}

/// Reads a line like `72 0x3 0x26 0x7ffd… …`.
fn parse(text: &[u8]) -> Parked {
    let Ok(text) = std::str::from_utf8(text) else {
        return Parked::Elsewhere;
    };
    let mut words = text.split_ascii_whitespace();
    let number = match words.next() {
        Some("running") => return Parked::NotYet,
        Some(word) => word.parse::<libc::c_long>().ok(),
        None => None,
    };
    if !number.is_some_and(|number| FCNTL.contains(&number)) {
        return Parked::Elsewhere;
    }
    let command = words
        .nth(1)
        .and_then(|word| word.strip_prefix("0x"))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        // An int; the upper half of the register means nothing.
        .map(|register| register as u32);
    match command {
        // F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW.
        Some(36..=38) => Parked::In(OwnerKind::OpenFile),
        // F_GETLK, F_SETLK, F_SETLKW, and the same three as 32-bit programs number their 64-bit forms.
        Some(5..=7 | 12..=14) => Parked::In(OwnerKind::Process),
        _ => Parked::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: libc::c_long, command: &str) -> Vec<u8> {
        format!("{number} 0x3 {command} 0x7ffc0 0x0 0x0 0x0 0x7ffc8 0x7f00\n").into_bytes()
    }

    #[test]
    fn the_command_tells_ofd_from_posix() {
        let fcntl = libc::SYS_fcntl;
        for (command, kind) in [
            ("0x5", OwnerKind::Process),
            ("0x6", OwnerKind::Process),
            ("0x7", OwnerKind::Process),
            ("0xe", OwnerKind::Process),
            ("0x24", OwnerKind::OpenFile),
            ("0x25", OwnerKind::OpenFile),
            ("0x26", OwnerKind::OpenFile),
            ("0xffffffff00000026", OwnerKind::OpenFile),
        ] {
            assert_eq!(parse(&line(fcntl, command)), Parked::In(kind), "{command}");
        }
        assert_eq!(parse(&line(221, "0xd")), Parked::In(OwnerKind::Process));
    }

    #[test]
    fn anything_else_is_no_answer() {
        let fcntl = libc::SYS_fcntl;
        assert_eq!(parse(b"running\n"), Parked::NotYet);
        for text in [
            &b""[..],
            b"-1 0x0 0x0\n",
            b"0 0x3 0x26\n",
            b"72\n",
            b"72 0x3\n",
            b"72 0x3 zz\n",
            b"\xff\xfe",
        ] {
            assert_eq!(parse(text), Parked::Elsewhere, "{text:?}");
        }
        assert_eq!(parse(&line(fcntl, "0x1")), Parked::Elsewhere);
    }

    #[test]
    fn a_blind_probe_and_an_unseen_caller_have_no_answer() {
        assert_eq!(CallerProbe::blind().owner_kind(1), None);
        assert_eq!(CallerProbe::default().owner_kind(0), None);
        assert_eq!(CallerProbe::default().owner_kind(u32::MAX), None);
    }
}
