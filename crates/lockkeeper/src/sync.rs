//! Locks, atomics and threads: the standard library's, or loom's in its model.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread::{Thread, current, park},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread::{Thread, current, park},
};

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
