//! Which cache lines a lock and an unlock touch: counted, in a trace of every load and store.
//!
//! The hidden command runs pairs in two threads, one after the other, under a tool that writes down each
//! access (`valgrind --tool=lackey --trace-mem=yes`). A store to one known address, the mark, begins and ends
//! each thread's pairs. What stands between two marks was done by that thread: the other ones sleep.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::{FileHandle, FileId, LockManager, LockType, ProcessId, Range};

/// Pairs of each thread.
const PAIRS: u64 = 100;

const LINE: u64 = 64;

#[repr(align(128))]
struct Mark(AtomicU64);

static MARK: Mark = Mark(AtomicU64::new(0));

fn pairs(file: &FileHandle, owner: u64) {
    let records = file.posix(ProcessId(owner));
    for _ in 0..PAIRS {
        let granted = records.try_lock(LockType::Write, Range::WHOLE);
        assert!(granted.is_ok(), "nobody else locks now");
        assert!(records.unlock(Range::WHOLE).is_ok());
    }
}

/// What the hidden command does. With `together` both threads lock the same file.
pub fn main(how: &str) -> ExitCode {
    let manager = LockManager::new();
    let second = if how == "together" { 1 } else { 2 };
    let files = [1, second].map(|inode| manager.file(FileId::new(0, inode)));
    let said = writeln!(io::stdout(), "{:x}", &raw const MARK as u64);
    if said.and_then(|()| io::stdout().flush()).is_err() {
        return ExitCode::from(2);
    }
    // Both threads are there before either begins, so that they have stacks of their own.
    let turns = [Barrier::new(2), Barrier::new(2)];
    let ends = Barrier::new(2);
    std::thread::scope(|scope| {
        for (n, file) in files.iter().enumerate() {
            let (turns, ends) = (&turns, &ends);
            scope.spawn(move || {
                // What is made once, by the first lock of a file or thread, is made here.
                pairs(file, n as u64 + 1);
                turns[n].wait();
                MARK.0.store(1, Ordering::SeqCst);
                pairs(file, n as u64 + 1);
                MARK.0.store(2, Ordering::SeqCst);
                ends.wait();
            });
            if n == 1 {
                for turn in turns {
                    turn.wait();
                    ends.wait();
                }
            }
        }
    });
    ExitCode::SUCCESS
}

/// The lines that one thread touched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Loaded from.
    pub read: BTreeSet<u64>,
    /// Stored to.
    pub written: BTreeSet<u64>,
}

impl Touched {
    /// Lines that this thread writes and the other touches.
    pub fn disturbs(&self, other: &Touched) -> BTreeSet<u64> {
        let touched = |line: &&u64| other.read.contains(line) || other.written.contains(line);
        self.written.iter().filter(touched).copied().collect()
    }
}

/// What each of the two threads touched, from lackey's trace and the address of the mark.
///
/// # Errors
/// The trace cannot be read, or does not have the four marks.
pub fn from_trace(trace: impl BufRead, mark: u64) -> io::Result<[Touched; 2]> {
    let mut touched = [Touched::default(), Touched::default()];
    let mut marks = 0;
    for line in trace.lines() {
        let Some((kind, address, size)) = access(&line?) else {
            continue;
        };
        let writes = kind != 'L';
        if writes && address == mark {
            marks += 1;
            continue;
        }
        if marks % 2 == 0 || marks > 3 {
            continue;
        }
        let of_thread: &mut Touched = &mut touched[marks / 2];
        for line in address / LINE..=(address + size - 1) / LINE {
            if writes {
                of_thread.written.insert(line);
            }
            if kind != 'S' {
                of_thread.read.insert(line);
            }
        }
    }
    if marks != 4 {
        return Err(io::Error::other(format!(
            "{marks} marks in the trace, not 4"
        )));
    }
    Ok(touched)
}

/// ` S 1ffeffe7e0,8`: what was done (load, store, modify), where, and to how many bytes.
fn access(line: &str) -> Option<(char, u64, u64)> {
    let rest = line.strip_prefix(' ')?;
    let kind = rest.chars().next().filter(|kind| "LSM".contains(*kind))?;
    let (address, size) = rest[1..].trim().split_once(',')?;
    let size = size.parse().ok().filter(|size| *size > 0)?;
    Some((kind, u64::from_str_radix(address, 16).ok()?, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(read: &[u64], written: &[u64]) -> Touched {
        Touched {
            read: read.iter().copied().collect(),
            written: written.iter().copied().collect(),
        }
    }

    #[test]
    fn accesses_between_the_marks_belong_to_the_threads_in_turn() {
        let trace = "==1== Lackey\nI  0023C790,2\n S 40,8\n S 1000,8\n L 80,8\n S fe,4\n M 200,8\n\
                     I  04001000,3\n S 1000,8\n S 2c0,8\n S 1000,8\n L 200,8\n S 1000,8\n S 300,8\n";
        let both = from_trace(trace.as_bytes(), 0x1000).expect("four marks");
        // A store of four bytes at 0xfe touches two lines.
        assert_eq!(both, [touched(&[2, 8], &[3, 4, 8]), touched(&[8], &[])]);
        assert_eq!(both[0].disturbs(&both[1]), BTreeSet::from([8]));
        assert!(both[1].disturbs(&both[0]).is_empty());
    }

    #[test]
    fn a_trace_without_its_marks_is_an_error() {
        for trace in ["", " S 1000,8\n", " S 1000,8\n S 1000,8\n L 1000,8\n"] {
            assert!(from_trace(trace.as_bytes(), 0x1000).is_err(), "{trace:?}");
        }
    }
}
