//! What a lock script is made of.
//!
//! The types follow the text closely: a [`Script`] is a list of [`Line`]s, a line holds a
//! [`Statement`] and a comment, a statement is a [`Step`] and the [`Outcome`] that it must have. Nothing
//! here knows how a step is carried out.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

macro_rules! word {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name `text`, or `None` where it is no word of the language.
            pub fn new(text: &str) -> Option<Self> {
                is_word(text).then(|| Self(text.into()))
            }

            /// The name as it is written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

word! {
    /// The name of an actor: a process, or a thread of one.
    Actor
}
word! {
    /// The name of a descriptor of one process.
    Descriptor
}
word! {
    /// The name of a file of the script.
    FileName
}

/// Words that stand where an actor's name may stand, and so cannot be one.
pub(crate) const RESERVED: [&str; 6] = ["break-time", "held", "none", "ofd", "pass", "waiting"];

/// The longest name, so that every name of a file is one that file systems take.
pub(crate) const LONGEST_WORD: usize = 64;

/// Whether `text` is a word: a letter, then letters, digits, `_`, `-` and `.`.
pub(crate) fn is_word(text: &str) -> bool {
    text.len() <= LONGEST_WORD
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

impl Actor {
    /// The name that a listing gives to a process which is no actor of the script.
    pub fn outsider(pid: i32) -> Self {
        Self(format!("pid-{pid}").into())
    }
}

/// A script: its lines, comments and blank lines among them, so that line `n` is `lines[n - 1]`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Script {
    /// Where the script came from: a path, or any name.
    pub source: String,
    /// Every line of the text.
    pub lines: Vec<Line>,
}

impl Script {
    /// The name by which a report calls the script: its file's name without the ending.
    pub fn name(&self) -> &str {
        Path::new(&self.source)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or(&self.source)
    }

    /// A script of these statements, one a line.
    pub fn of(source: &str, statements: impl IntoIterator<Item = Statement>) -> Self {
        Self {
            source: source.to_owned(),
            lines: statements
                .into_iter()
                .map(|statement| Line {
                    statement: Some(statement),
                    comment: None,
                })
                .collect(),
        }
    }

    /// The statements, each with the number of its line.
    pub fn statements(&self) -> impl Iterator<Item = (usize, &Statement)> {
        self.lines.iter().enumerate().filter_map(|(index, line)| {
            line.statement
                .as_ref()
                .map(|statement| (index + 1, statement))
        })
    }
}

/// One line of a script.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Line {
    /// What the line does, if anything.
    pub statement: Option<Statement>,
    /// The text after `#`, without the blanks around it.
    pub comment: Option<String>,
}

/// A step and what it must return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What is done.
    pub step: Step,
    /// What it must return.
    pub expected: Outcome,
}

/// One thing that a script does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// `ACTOR VERB …`
    Act {
        /// Who does it.
        actor: Actor,
        /// What is done.
        verb: Verb,
    },
    /// `break-time SECONDS`: the lease break time of what follows.
    BreakTime(u32),
    /// `pass SECONDS`: so much time goes by.
    Pass(u32),
    /// `held FILE`: the granted locks of the file.
    Held(FileName),
    /// `waiting FILE`: the requests that wait on the file.
    Waiting(FileName),
}

impl Step {
    /// The outcome that is meant where a line names none. `held` and `waiting` have no such outcome.
    pub fn usual(&self) -> Option<Outcome> {
        match self {
            Self::Held(_) | Self::Waiting(_) => None,
            Self::Act {
                verb: Verb::Blocked,
                ..
            } => Some(Outcome::Blocked),
            _ => Some(Outcome::Ok),
        }
    }

    /// The step's actor.
    pub fn actor(&self) -> Option<&Actor> {
        match self {
            Self::Act { actor, .. } => Some(actor),
            _ => None,
        }
    }
}

/// What an actor does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `open FD FILE r|w|rw` and `opennb …`: open(2), the file being created first where it is new.
    Open {
        /// The new descriptor.
        fd: Descriptor,
        /// The file.
        file: FileName,
        /// The access mode.
        access: Access,
        /// With O_NONBLOCK.
        nonblock: bool,
    },
    /// `dup FD NEW`: dup(2).
    Dup {
        /// The descriptor.
        fd: Descriptor,
        /// Its twin.
        new: Descriptor,
    },
    /// `close FD`: close(2).
    Close {
        /// The descriptor.
        fd: Descriptor,
    },
    /// `seek FD OFFSET`: lseek(2) with SEEK_SET.
    Seek {
        /// The descriptor.
        fd: Descriptor,
        /// The new offset.
        offset: i64,
    },
    /// `truncate FD SIZE`: ftruncate(2).
    Truncate {
        /// The descriptor.
        fd: Descriptor,
        /// The new size.
        size: i64,
    },
    /// `resize FILE SIZE`: truncate(2), by name, which a lease may stop.
    Resize {
        /// The file.
        file: FileName,
        /// The new size.
        size: i64,
    },
    /// `link FILE NEW`: link(2), a second name of the file.
    Link {
        /// The file.
        file: FileName,
        /// Its second name.
        new: FileName,
    },
    /// `fork B`: fork(2).
    Fork {
        /// The child.
        child: Actor,
    },
    /// `thread B`: a further thread of the process.
    Thread {
        /// The thread.
        thread: Actor,
    },
    /// `exec`: execve(2); the other threads of the process end.
    Exec,
    /// `exit`: _exit(2).
    Exit,
    /// `kill`: SIGKILL.
    Kill,
    /// `signal [restart]`: a caught signal.
    Signal {
        /// The handler was set with SA_RESTART.
        restart: bool,
    },
    /// `posix FD TYPE RANGE [wait]` and `ofd …`: F_SETLK, F_SETLKW and their F_OFD forms.
    Set {
        /// What is asked for.
        record: Record,
        /// Waits for it.
        wait: bool,
    },
    /// `posix? FD TYPE RANGE` and `ofd? …`: F_GETLK, F_OFD_GETLK.
    Query {
        /// What is asked about.
        record: Record,
    },
    /// `flock FD shared|exclusive|unlock [wait]`: flock(2).
    Flock {
        /// The descriptor.
        fd: Descriptor,
        /// Shared is read, exclusive is write.
        lock_type: LockType,
        /// Without LOCK_NB.
        wait: bool,
    },
    /// `lease FD read|write|unlock`: F_SETLEASE.
    Lease {
        /// The descriptor.
        fd: Descriptor,
        /// The lease.
        lock_type: LockType,
    },
    /// `lease? FD`: F_GETLEASE.
    LeaseQuery {
        /// The descriptor.
        fd: Descriptor,
    },
    /// `done`: the blocked call has returned.
    Done,
    /// `blocked`: the call is still blocked.
    Blocked,
    /// `notified`: the process has been told of a lease break since it was last asked.
    Notified,
}

impl Verb {
    /// The descriptor that the verb uses, which must be open.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        match self {
            Self::Dup { fd, .. }
            | Self::Close { fd }
            | Self::Seek { fd, .. }
            | Self::Truncate { fd, .. }
            | Self::Flock { fd, .. }
            | Self::Lease { fd, .. }
            | Self::LeaseQuery { fd } => Some(fd),
            Self::Set { record, .. } | Self::Query { record } => Some(&record.fd),
            _ => None,
        }
    }

    /// Whether the call may have to wait, so that `blocked` can be its outcome.
    pub fn may_block(&self) -> bool {
        match self {
            Self::Set { wait, .. } | Self::Flock { wait, .. } => *wait,
            Self::Open { nonblock, .. } => !nonblock,
            Self::Resize { .. } => true,
            _ => false,
        }
    }
}

/// The access mode of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// O_RDONLY
    Read,
    /// O_WRONLY
    Write,
    /// O_RDWR
    ReadWrite,
}

/// The arguments of a record-lock call, as they stand in `struct flock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Owned by the process or by the open file description.
    pub kind: RecordKind,
    /// The descriptor.
    pub fd: Descriptor,
    /// `l_type`
    pub lock_type: RequestType,
    /// `l_whence`, `l_start` and `l_len`
    pub range: Range,
    /// `l_pid`, 0 where it is left out.
    pub pid: Option<i32>,
}

/// The two families of record locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Owned by a process.
    Posix,
    /// Owned by an open file description.
    Ofd,
}

/// The type of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockType {
    /// F_RDLCK, LOCK_SH
    Read,
    /// F_WRLCK, LOCK_EX
    Write,
    /// F_UNLCK, LOCK_UN
    Unlock,
}

/// `l_type` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestType {
    /// One of the three that there are.
    Known(LockType),
    /// Another number, which must be refused: `type:N`.
    Raw(i16),
}

/// The range of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// `l_whence`
    pub base: Base,
    /// `l_start`
    pub start: i64,
    /// `l_len`
    pub len: i64,
}

impl Range {
    /// The bytes that are meant, where the text alone tells: not for a range that counts from the offset
    /// or the end of the file, nor for one that is refused.
    pub fn span(&self) -> Option<Span> {
        let Self { base, start, len } = *self;
        let (start, len) = match len {
            0.. => (start, len),
            _ => (start.checked_add(len)?, len.checked_neg()?),
        };
        let overflows = len > 0 && start.checked_add(len - 1).is_none();
        if base != Base::Start || start < 0 || overflows {
            return None;
        }
        let span = Span { start, len };
        Some(Span::inclusive(start, span.end()))
    }
}

/// `l_whence` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// SEEK_SET
    Start,
    /// SEEK_CUR
    Current,
    /// SEEK_END
    End,
    /// Another number, which must be refused: `whence:N:START,LEN`.
    Raw(i16),
}

/// What a step returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it says.
    Ok,
    /// It failed.
    Error(Errno),
    /// The call has not returned.
    Blocked,
    /// A query found nothing in the way.
    Free,
    /// A query found a lock in the way.
    Conflict {
        /// The lock's type.
        lock_type: LockType,
        /// Its range.
        span: Span,
        /// Who holds it.
        by: Holder,
    },
    /// What F_GETLEASE says.
    Lease(LockType),
    /// No notification came.
    None,
    /// The locks or requests of a file.
    Listing(Vec<Item>),
}

/// A range as it is shown: a start and a length, 0 where it reaches to the end of the offset space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: i64,
    /// The number of bytes, or 0.
    pub len: i64,
}

impl Span {
    /// The span of the bytes from `start` to `end`, both inclusive.
    pub fn inclusive(start: i64, end: i64) -> Self {
        let len = if end == i64::MAX { 0 } else { end - start + 1 };
        Self { start, len }
    }

    /// Whether a byte belongs to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end() && other.start <= self.end()
    }

    /// The last byte, inclusive.
    pub fn end(&self) -> i64 {
        match self.len {
            0 => i64::MAX,
            len => self.start.saturating_add(len - 1),
        }
    }
}

/// Who holds a lock that a query found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process.
    Actor(Actor),
    /// An open file description, which has no pid to show.
    Ofd,
}

/// One granted lock, or one waiting request, of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which kind of lock.
    pub kind: ItemKind,
    /// Its type.
    pub lock_type: LockType,
    /// Its range, for record locks.
    pub span: Option<Span>,
    /// The process that took it or asks for it.
    pub actor: Actor,
}

/// The kinds of locks that a listing tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ItemKind {
    /// F_SETLK
    Posix,
    /// F_OFD_SETLK
    Ofd,
    /// flock(2)
    Flock,
    /// F_SETLEASE
    Lease,
}

impl Item {
    /// Puts granted locks in the order of `held`: record locks, flock, leases; then start, then actor.
    pub fn sort(items: &mut [Item]) {
        items.sort_by(|a, b| {
            let key = |item: &Item| {
                let group = match item.kind {
                    ItemKind::Posix | ItemKind::Ofd => 0,
                    ItemKind::Flock => 1,
                    ItemKind::Lease => 2,
                };
                (group, item.span.map(|span| span.start))
            };
            key(a)
                .cmp(&key(b))
                .then_with(|| a.actor.cmp(&b.actor))
                .then_with(|| (a.kind, a.lock_type, a.span).cmp(&(b.kind, b.lock_type, b.span)))
        });
    }
}

/// An error number, shown by its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Errno = Errno(libc::$name);
            )*
        }

        const ERRNO_NAMES: &[(i32, &str)] = &[$((libc::$name, stringify!($name))),*];
    };
}

errnos! {
    EPERM ENOENT EINTR EIO ENXIO EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV
    ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE
    EDEADLK ENAMETOOLONG ENOLCK ENOSYS ELOOP EOVERFLOW EOPNOTSUPP ETIMEDOUT ENOTCONN ESTALE EREMOTEIO
    EDQUOT ECANCELED EOWNERDEAD ENOTRECOVERABLE
}

impl Errno {
    /// The number of `name`: a name that the manual knows, or `E` and a number.
    pub fn named(name: &str) -> Option<Self> {
        if name == "EWOULDBLOCK" {
            return Some(Self::EAGAIN);
        }
        if let Some((number, _)) = ERRNO_NAMES.iter().find(|(_, known)| *known == name) {
            return Some(Self(*number));
        }
        let number = name.strip_prefix('E')?.parse().ok()?;
        (1..4096).contains(&number).then_some(Self(number))
    }

    /// The name, where the number has one here.
    pub fn name(self) -> Option<&'static str> {
        ERRNO_NAMES
            .iter()
            .find(|(number, _)| *number == self.0)
            .map(|(_, name)| *name)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
