//! /proc/locks: reading it, and what a line says.

use std::fs::File;
use std::io::{self, Read};

use super::Key;
use crate::report::{Kind, Mode};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// What it says but for the ordinal number, blanks made single: the same in fdinfo.
    pub(crate) text: String,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) is_breaking: bool,
    /// 0 where it is not told.
    pub(crate) pid: u32,
    pub(crate) key: Option<Key>,
    pub(crate) start: u64,
    pub(crate) end: Option<u64>,
    /// How many waiters are above it; `None` for a lock that is held.
    pub(crate) depth: Option<u32>,
}

/// A lock and what waits for it, in the order of the tree. The kernel writes a record in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) held: Line,
    pub(crate) waiters: Vec<Line>,
}

impl Record {
    pub(crate) fn key(&self) -> Option<Key> {
        self.held.key
    }
}

/// So often the listing is read until two readings say the same.
const READINGS: usize = 3;

/// Every lock.
///
/// # Errors
/// There is no /proc/locks.
pub(crate) fn read() -> io::Result<Vec<Record>> {
    // A listing of several pieces may miss a lock when others come and go between them.
    let (mut records, mut pieces) = read_once()?;
    for _ in 1..READINGS {
        if pieces <= 1 {
            break;
        }
        let again;
        (again, pieces) = read_once()?;
        if again == records {
            break;
        }
        records = again;
    }
    Ok(records)
}

fn read_once() -> io::Result<(Vec<Record>, usize)> {
    let mut file = File::open("/proc/locks")?;
    let mut text = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    let mut pieces = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => text.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        pieces += 1;
    }
    Ok((parse(&String::from_utf8_lossy(&text)), pieces))
}

/// The records of a listing. What is not understood is left out.
pub(crate) fn parse(text: &str) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    for line in text.lines().filter_map(parse_line) {
        match (line.depth, records.last_mut()) {
            (None, _) => records.push(Record {
                held: line,
                waiters: Vec::new(),
            }),
            (Some(_), Some(record)) => record.waiters.push(line),
            (Some(_), None) => {}
        }
    }
    records
}

/// `1: POSIX  ADVISORY  WRITE 4711 08:02:131 0 EOF`, and with an arrow before the kind what waits, further
/// to the right the deeper it hangs.
pub(crate) fn parse_line(line: &str) -> Option<Line> {
    let (_, rest) = line.split_once(": ")?;
    let (depth, rest) = match rest.split_once("->") {
        Some((blanks, rest)) => (Some(u32::try_from(blanks.len()).ok()?), rest),
        None => (None, rest),
    };
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let &[kind, state, mode, pid, file, start, end] = &words[..] else {
        return None;
    };
    Some(Line {
        text: words.join(" "),
        kind: match kind {
            "POSIX" => Kind::Posix,
            "OFDLCK" => Kind::Ofd,
            "FLOCK" => Kind::Flock,
            "LEASE" => Kind::Lease,
            "DELEG" => Kind::Delegation,
            _ => Kind::Other,
        },
        mode: match mode {
            "READ" => Mode::Read,
            // What is left of a lease that is broken altogether is not told; it was in the way of somebody.
            _ => Mode::Write,
        },
        is_breaking: state == "BREAKING",
        pid: pid.parse().unwrap_or(0),
        key: parse_key(file),
        start: start.parse().ok()?,
        end: match end {
            "EOF" => None,
            end => Some(end.parse().ok()?),
        },
        depth,
    })
}

/// `08:02:131`, major and minor in hexadecimal.
fn parse_key(text: &str) -> Option<Key> {
    let mut parts = text.split(':');
    let major = u32::from_str_radix(parts.next()?, 16).ok()?;
    let minor = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some((major, minor, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_with_its_trees() {
        let records = parse(
            "\
1: POSIX  ADVISORY  WRITE 4711 fe:02:131 0 9
1: -> POSIX  ADVISORY  WRITE 4712 fe:02:131 0 EOF
1:  -> POSIX  ADVISORY  READ 4713 fe:02:131 5 5
1: -> OFDLCK ADVISORY  READ -1 fe:02:131 0 0
2: LEASE  BREAKING  UNLCK 99 00:2b:7 0 EOF
2: -> LEASE  BREAKER   WRITE 98 <none>:0 0 EOF
nonsense
3: FLOCK  ADVISORY  READ 1 <none>:0 0 EOF
4: POSIX  ADVISORY  WRITE 1 fe:02:1 x EOF
",
        );
        assert_eq!(records.len(), 3);
        assert_eq!(records[0].key(), Some((0xfe, 2, 131)));
        let depths: Vec<_> = records[0].waiters.iter().map(|line| line.depth).collect();
        assert_eq!(depths, [Some(0), Some(1), Some(0)]);
        assert_eq!(records[0].waiters[2].pid, 0);
        assert_eq!(records[0].held.end, Some(9));
        assert!(records[1].held.is_breaking);
        assert_eq!(records[2].key(), None);
    }
}
