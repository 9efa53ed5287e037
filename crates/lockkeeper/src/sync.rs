//! Locks, atomics and threads: the standard library's, or loom's in its model.

// Loom's own cannot be the type of `self`, and what `Arc` does is not ours to
// check.
pub(crate) use std::sync::Arc;

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::{Thread, current, park},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread::{Thread, current, park},
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
