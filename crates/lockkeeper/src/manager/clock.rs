//! Where the manager takes the time from.

use core::time::Duration;

use crate::lock::Time;
use crate::sync::{Mutex, lock};

/// Monotonic time, of the system or moved by hand.
#[derive(Debug)]
pub(crate) enum Clock {
    #[cfg_attr(loom, allow(dead_code))]
    System,
    Manual(Mutex<Time>),
}

impl Clock {
    /// The time, exact.
    pub(crate) fn now(&self) -> Time {
        match self {
            Clock::System => system::now(),
            Clock::Manual(time) => *lock(time),
        }
    }

    /// The time to within a few milliseconds, for the record of when a lock was
    /// granted: reading the exact time would cost as much as the lock itself.
    #[inline]
    pub(crate) fn recent(&self) -> Time {
        match self {
            Clock::System => system::recent(),
            Clock::Manual(time) => *lock(time),
        }
    }

    /// Whether time passes by hand alone.
    pub(crate) fn is_manual(&self) -> bool {
        matches!(self, Clock::Manual(_))
    }

    /// Moves a manual clock on; `false` for the system's, which moves by itself.
    pub(crate) fn advance(&self, duration: Duration) -> bool {
        match self {
            Clock::System => false,
            Clock::Manual(time) => {
                let mut time = lock(time);
                *time = time.after(duration);
                true
            }
        }
    }
}

#[cfg(all(target_os = "linux", not(loom)))]
mod system {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    use crate::lock::Time;

    pub(super) fn now() -> Time {
        time(clock_gettime(ClockId::Monotonic))
    }

    #[inline]
    pub(super) fn recent() -> Time {
        time(clock_gettime(ClockId::MonotonicCoarse))
    }

    #[inline]
    fn time(spec: Timespec) -> Time {
        Time(spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64)
    }
}

#[cfg(not(all(target_os = "linux", not(loom))))]
mod system {
    use std::sync::OnceLock;
    use std::time::Instant;

    use crate::lock::Time;

    pub(super) fn now() -> Time {
        static START: OnceLock<Instant> = OnceLock::new();
        Time(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }

    pub(super) fn recent() -> Time {
        now()
    }
}
