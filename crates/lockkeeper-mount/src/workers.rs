//! The worker threads: for requests that may wait for a disk.
//!
//! They are started as they are needed, up to a limit, and stay. The reader never waits for them: the
//! queue has no bound of its own, since the kernel bounds how many requests it has under way. Where all of
//! them hang in a source that does not answer, more are started, which end when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::device::ReplyBuffer;

/// So many slow calls at once keep any disk busy.
const USUAL_WORKERS: usize = 32;
/// More calls than this that hang at once hold up the calls after them.
const MOST_WORKERS: usize = 256;
/// Looks at a queue that does not move until there are more workers.
const LOOKS: usize = 8;
/// After so long without a job a worker beyond the usual number ends.
const LINGER: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce(&mut ReplyBuffer) + Send>;

/// A pool of threads that serve slow requests. The threads end with it.
#[derive(Debug)]
pub struct Workers {
    sender: Sender<Job>,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    receiver: Receiver<Job>,
    idle: AtomicUsize,
    started: AtomicUsize,
    /// Jobs that a worker has begun: if it stands still while jobs wait, all workers hang.
    begun: AtomicU64,
    /// What it was when it was looked at last, and how often it has been that since.
    seen: AtomicU64,
    still: AtomicUsize,
}

impl Default for Workers {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        let pool = Pool {
            receiver,
            idle: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            still: AtomicUsize::new(0),
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
            self.pool.start_one(USUAL_WORKERS);
        }
        if self.pool.started.load(Ordering::Relaxed) == 0 {
            // Not one thread to be had: slow service is better than none.
            return job(&mut ReplyBuffer::default());
        }
        // The pool has a receiver as long as this lives, so sending cannot fail.
        let _ = self.sender.send(job);
    }

    /// To be called every few milliseconds while there may be work: starts more workers where all hang.
    /// Returns whether jobs wait.
    pub fn tend(&self) -> bool {
        let (pool, queued) = (&*self.pool, self.sender.len());
        let begun = pool.begun.load(Ordering::Relaxed);
        if queued == 0 || pool.seen.swap(begun, Ordering::Relaxed) != begun {
            pool.still.store(0, Ordering::Relaxed);
        } else if pool.still.fetch_add(1, Ordering::Relaxed) >= LOOKS {
            pool.still.store(0, Ordering::Relaxed);
            for _ in 0..queued.min(USUAL_WORKERS) {
                self.pool.start_one(MOST_WORKERS);
            }
        }
        queued > 0
    }
}

impl Pool {
    fn start_one(self: &Arc<Self>, most: usize) {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        if number >= most {
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
            let job = self.receiver.recv_timeout(LINGER);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            match job {
                Ok(job) => {
                    self.begun.fetch_add(1, Ordering::Relaxed);
                    job(&mut out);
                }
                Err(RecvTimeoutError::Timeout) if !self.is_one_too_many() => {}
                Err(_) => return,
            }
        }
    }

    /// Whether there are more workers than usual; if so, the caller no longer counts as one.
    fn is_one_too_many(&self) -> bool {
        let fewer = |started: usize| (started > USUAL_WORKERS).then(|| started - 1);
        self.started
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_workers_hang_others_do_the_work_up_to_a_limit() {
        let workers = Workers::default();
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        let (done, finished) = unbounded();
        for _ in 0..USUAL_WORKERS + 3 {
            let held = held.clone();
            workers.submit(Box::new(move |_| {
                let _ = held.recv();
            }));
        }
        let last = done.clone();
        workers.submit(Box::new(move |_| {
            let _ = last.send(());
        }));
        assert!(finished.is_empty());
        while finished.is_empty() {
            workers.tend();
            std::thread::yield_now();
        }
        for _ in 0..2 * MOST_WORKERS {
            let (held, done) = (held.clone(), done.clone());
            workers.submit(Box::new(move |_| {
                let _ = held.recv();
                let _ = done.send(());
            }));
        }
        while workers.pool.started.load(Ordering::Relaxed) < MOST_WORKERS {
            assert!(workers.tend());
        }
        for _ in 0..2 * LOOKS {
            assert!(workers.tend());
        }
        assert_eq!(workers.pool.started.load(Ordering::Relaxed), MOST_WORKERS);
        drop(release);
        for _ in 0..2 * MOST_WORKERS {
            assert!(finished.recv_timeout(Duration::from_secs(10)).is_ok());
        }
    }
}
