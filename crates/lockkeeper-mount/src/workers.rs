//! The worker threads: for requests that may wait for a disk.
//!
//! They are started as they are needed, up to a limit, and stay. The reader never waits for them: the
//! queue has no bound of its own, since the kernel bounds how many requests it has under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::device::ReplyBuffer;

/// So many slow calls at once keep any disk busy.
const MOST_WORKERS: usize = 32;

type Job = Box<dyn FnOnce(&mut ReplyBuffer) + Send>;

/// A pool of threads that serve slow requests. Clones share it; the threads end with the last clone.
#[derive(Clone, Debug)]
pub struct Workers {
    sender: Sender<Job>,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    receiver: Receiver<Job>,
    idle: AtomicUsize,
    started: AtomicUsize,
}

impl Default for Workers {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        let pool = Pool {
            receiver,
            idle: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
        };
        Workers {
            sender,
            pool: Arc::new(pool),
        }
    }
}

impl Workers {
    /// Has a worker do `job`.
    pub fn submit(&self, job: Job) {
        // More queued than idle workers: start one. Counting is racy, and harmlessly so.
        if self.sender.len() >= self.pool.idle.load(Ordering::Relaxed) {
            self.pool.start_one();
        }
        if self.pool.started.load(Ordering::Relaxed) == 0 {
            // Not one thread to be had: slow service is better than none.
            return job(&mut ReplyBuffer::default());
        }
        // The pool has a receiver as long as this lives, so sending cannot fail.
        let _ = self.sender.send(job);
    }
}

impl Pool {
    fn start_one(self: &Arc<Self>) {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        if number >= MOST_WORKERS {
            self.started.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let pool = self.clone();
        let thread = std::thread::Builder::new().name(format!("data-{number}"));
        if let Err(error) = thread.spawn(move || pool.work()) {
            self.started.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "cannot start a worker thread");
        }
    }

    fn work(&self) {
        if let Err(errno) = crate::sys::own_umask() {
            tracing::warn!(%errno, "a worker shares its umask");
        }
        let mut out = ReplyBuffer::default();
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let job = self.receiver.recv();
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let Ok(job) = job else { return };
            job(&mut out);
        }
    }
}
