//! Locks, atomics and threads: the standard library's, or loom's in its model.

// Loom's own cannot be the type of `self`, and what `Arc` does is not ours to
// check.
pub(crate) use std::sync::Arc;

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread_local,
};
#[cfg(loom)]
pub(crate) use parking::{Thread, current, park};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{Thread, current, park},
    thread_local,
};

/// Hashes what others may choose. Loom wants every run of a model to take the
/// same way through the maps.
#[cfg(not(loom))]
pub(crate) type HashBuilder = hashbrown::DefaultHashBuilder;
#[cfg(loom)]
pub(crate) type HashBuilder = core::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Locks a mutex. A panic of another thread while it held it cannot have left
/// the state behind it broken: nothing that runs under one of our mutexes calls
/// foreign code.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Parks threads as std does. Loom's own loses an unpark of a thread that is just
/// then blocked at a mutex.
#[cfg(loom)]
mod parking {
    use loom::sync::{Condvar, Mutex};

    use super::{Arc, lock};

    #[derive(Clone)]
    pub(crate) struct Thread(Arc<(Mutex<bool>, Condvar)>);

    loom::thread_local! {
        static CURRENT: Thread = Thread(Arc::new((Mutex::new(false), Condvar::new())));
    }

    pub(crate) fn current() -> Thread {
        CURRENT.with(Thread::clone)
    }

    pub(crate) fn park() {
        let Thread(token) = current();
        let mut is_given = lock(&token.0);
        while !*is_given {
            is_given = token.1.wait(is_given).expect("not poisoned");
        }
        *is_given = false;
    }

    impl Thread {
        pub(crate) fn unpark(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }
}
