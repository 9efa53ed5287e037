//! A lock server in the manner of NLM: clients send messages, the server answers
//! GRANTED, DENIED or BLOCKED at once, and grants what was blocked by a message of
//! its own later. No thread of the server ever waits for a lock.

use std::sync::mpsc::{Receiver, Sender, channel};

use lockkeeper::table::Waits;
use lockkeeper::{
    CallbackId, Errno, FileHandle, FileId, LockManager, LockType, Range, RemoteOwner, Started,
};

/// What a client asks for. The cookie names the request.
enum Call {
    Lock {
        cookie: u64,
        client: usize,
        blocks: bool,
    },
    Cancel {
        cookie: u64,
    },
    Unlock {
        client: usize,
    },
    /// The client's machine has restarted: its locks are gone.
    Restarted {
        client: usize,
    },
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Granted(u64),
    Denied(u64),
    Blocked(u64),
    /// A call back to the client: the lock is its now.
    GrantedLater(u64),
    CancelledLater(u64),
    /// The cancel came too late, or for a request that does not wait.
    NothingToCancel(u64),
    Done,
}

struct Server {
    manager: LockManager,
    file: FileHandle,
    replies: Sender<Reply>,
}

impl Server {
    fn new() -> (Server, Receiver<Reply>) {
        let manager = LockManager::new();
        let file = manager.file(FileId::new(8, 131));
        let (replies, received) = channel();
        let server = Server {
            manager,
            file,
            replies,
        };
        (server, received)
    }

    fn owner(client: usize) -> RemoteOwner {
        RemoteOwner::new(format!("client{client}").as_bytes(), -(client as i32))
    }

    fn serve(&self, call: Call) {
        let reply = match call {
            Call::Lock {
                cookie,
                client,
                blocks,
            } => self.lock(cookie, client, blocks),
            Call::Cancel { cookie } => match self.manager.cancel_callback(CallbackId(cookie)) {
                Ok(()) => Reply::Done,
                Err(_) => Reply::NothingToCancel(cookie),
            },
            Call::Unlock { client } => {
                let records = self.file.remote(Server::owner(client));
                records.unlock(Range::WHOLE).expect("a whole file");
                Reply::Done
            }
            Call::Restarted { client } => {
                let owner = Server::owner(client).into();
                self.file.release_owner(&owner, Waits::Interrupt);
                Reply::Done
            }
        };
        self.reply(reply);
    }

    fn lock(&self, cookie: u64, client: usize, blocks: bool) -> Reply {
        let records = self.file.remote(Server::owner(client));
        if !blocks {
            return match records.try_lock(LockType::Write, Range::WHOLE) {
                Ok(()) => Reply::Granted(cookie),
                Err(_) => Reply::Denied(cookie),
            };
        }
        let replies = self.replies.clone();
        let callback = move |result: Result<(), lockkeeper::LockError>| {
            let reply = match result {
                Ok(()) => Reply::GrantedLater(cookie),
                Err(_) => Reply::CancelledLater(cookie),
            };
            replies.send(reply).expect("somebody listens");
        };
        let id = CallbackId(cookie);
        match records.lock_callback(id, LockType::Write, Range::WHOLE, callback) {
            Ok(Started::Granted) => Reply::Granted(cookie),
            Ok(Started::Waiting(_)) => Reply::Blocked(cookie),
            // The client sent the same request again: it waits already.
            Err(error) if error.errno() == Errno::EALREADY => Reply::Blocked(cookie),
            Err(_) => Reply::Denied(cookie),
        }
    }

    fn reply(&self, reply: Reply) {
        self.replies.send(reply).expect("somebody listens");
    }
}

fn main() {
    let (server, received) = Server::new();
    let lock = |cookie, client, blocks| Call::Lock {
        cookie,
        client,
        blocks,
    };
    let conversation = [
        (lock(1, 1, true), vec![Reply::Granted(1)]),
        (lock(2, 2, false), vec![Reply::Denied(2)]),
        (lock(3, 2, true), vec![Reply::Blocked(3)]),
        (lock(4, 3, true), vec![Reply::Blocked(4)]),
        // Sent again, since the client saw no answer: one wait all the same.
        (lock(3, 2, true), vec![Reply::Blocked(3)]),
        (
            Call::Cancel { cookie: 3 },
            vec![Reply::CancelledLater(3), Reply::Done],
        ),
        (Call::Cancel { cookie: 3 }, vec![Reply::NothingToCancel(3)]),
        (
            Call::Unlock { client: 1 },
            vec![Reply::GrantedLater(4), Reply::Done],
        ),
        (lock(5, 1, true), vec![Reply::Blocked(5)]),
        (
            Call::Restarted { client: 3 },
            vec![Reply::GrantedLater(5), Reply::Done],
        ),
    ];
    for (call, expected) in conversation {
        server.serve(call);
        let replies: Vec<Reply> = received.try_iter().collect();
        println!("{replies:?}");
        assert_eq!(replies, expected);
    }
    let granted = server.file.snapshot().granted;
    println!("{}", granted[0].lock);
    assert_eq!(granted.len(), 1);
}
