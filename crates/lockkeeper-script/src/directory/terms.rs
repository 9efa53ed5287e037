//! Between the script's terms and the kernel's.

use rustix::io::Errno as SystemErrno;

use super::listing::Entry;
use super::protocol::Reply;
use crate::executor::ExecutorError;
use crate::script::*;

/// A descriptor's number or an id, which the kernel keeps in 32 bits.
pub(super) fn small(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(-1)
}

pub(super) fn lost(name: &Actor) -> ExecutorError {
    ExecutorError::Lost {
        actor: name.clone(),
    }
}

pub(super) fn error(errno: SystemErrno) -> Outcome {
    Outcome::Error(Errno(errno.raw_os_error()))
}

pub(super) fn plain(reply: Reply) -> Outcome {
    reply.map_or_else(error, |_| Outcome::Ok)
}

pub(super) fn type_number(lock_type: LockType) -> i32 {
    match lock_type {
        LockType::Read => libc::F_RDLCK,
        LockType::Write => libc::F_WRLCK,
        LockType::Unlock => libc::F_UNLCK,
    }
}

pub(super) fn lock_type(number: i64) -> Option<LockType> {
    [LockType::Read, LockType::Write, LockType::Unlock]
        .into_iter()
        .find(|lock_type| i64::from(type_number(*lock_type)) == number)
}

pub(super) fn set_command(kind: RecordKind, wait: bool) -> i32 {
    match (kind, wait) {
        (RecordKind::Posix, false) => libc::F_SETLK,
        (RecordKind::Posix, true) => libc::F_SETLKW,
        (RecordKind::Ofd, false) => libc::F_OFD_SETLK,
        (RecordKind::Ofd, true) => libc::F_OFD_SETLKW,
    }
}

pub(super) fn record_numbers(number: i32, record: &Record, command: i32) -> [i64; 7] {
    let l_type = match record.lock_type {
        RequestType::Known(lock_type) => type_number(lock_type).into(),
        RequestType::Raw(number) => i64::from(number),
    };
    let whence = match record.range.base {
        Base::Start => libc::SEEK_SET.into(),
        Base::Current => libc::SEEK_CUR.into(),
        Base::End => libc::SEEK_END.into(),
        Base::Raw(number) => i64::from(number),
    };
    [
        number.into(),
        command.into(),
        l_type,
        whence,
        record.range.start,
        record.range.len,
        record.pid.unwrap_or(0).into(),
    ]
}

/// The bytes of a range that was granted, as far as its text tells: one that counts from the offset or
/// the end stands for the whole file.
pub(super) fn absolute(range: &Range) -> Span {
    range.span().unwrap_or(Span { start: 0, len: 0 })
}

pub(super) fn item(entry: &Entry, actor: Actor) -> Item {
    Item {
        kind: entry.kind,
        lock_type: entry.lock_type,
        span: match entry.kind {
            ItemKind::Posix | ItemKind::Ofd => Some(Span::inclusive(entry.start, entry.end)),
            ItemKind::Flock | ItemKind::Lease => None,
        },
        actor,
    }
}

/// How well a call of process `pid` fits an entry that waits: `None` where it cannot be the one.
pub(super) fn likeness(entry: &Entry, pid: i32, verb: &Verb) -> Option<u8> {
    if entry.pid.is_some_and(|listed| listed != pid) {
        return None;
    }
    match (entry.kind, verb) {
        (ItemKind::Posix | ItemKind::Ofd, Verb::Set { record, .. }) => {
            let kind = match record.kind {
                RecordKind::Posix => ItemKind::Posix,
                RecordKind::Ofd => ItemKind::Ofd,
            };
            let same_type = record.lock_type == RequestType::Known(entry.lock_type);
            let same_span = absolute(&record.range) == Span::inclusive(entry.start, entry.end);
            (entry.kind == kind && same_type).then_some(u8::from(same_span))
        }
        (ItemKind::Flock, Verb::Flock { lock_type, .. }) => {
            (*lock_type == entry.lock_type).then_some(1)
        }
        (ItemKind::Lease, Verb::Open { access, .. }) => {
            let to_read = *access == Access::Read;
            (to_read == (entry.lock_type == LockType::Read)).then_some(1)
        }
        (ItemKind::Lease, Verb::Resize { .. }) => (entry.lock_type == LockType::Write).then_some(1),
        _ => None,
    }
}

/// The position of the first of those that fit best.
pub(super) fn best_match<T>(
    candidates: &[T],
    mut fits: impl FnMut(&T) -> Option<u8>,
) -> Option<usize> {
    let mut best: Option<(u8, usize)> = None;
    for (position, candidate) in candidates.iter().enumerate() {
        if let Some(fit) = fits(candidate)
            && best.is_none_or(|(so_far, _)| fit > so_far)
        {
            best = Some((fit, position));
        }
    }
    best.map(|(_, position)| position)
}
