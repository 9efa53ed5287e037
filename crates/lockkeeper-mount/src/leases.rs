//! Leases that are taken away because they were not given up in time, as far as a mount's server can know.
//!
//! The kernel keeps the leases of a FUSE mount to itself: it grants them, holds up the open that breaks one before
//! that becomes a request, and takes the lease away when the time in /proc/sys/fs/lease-break-time is up. No message
//! tells the server of any of it. But /proc/locks shows that a lease is being broken (proc(5)). So a lease that was
//! being broken for so long and no more is has timed out, or was given up in the last moment: which of the two, nobody
//! tells. What happens between two looks is not seen, nor what /proc/locks hides: processes of other pid namespaces.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use lockkeeper_watch::kernel;
use lockkeeper_watch::report::{Held, Report};
use lockkeeper_watch::words;

/// A look is followed by so many times its own length without one: the kernel's listing is as long as there are locks
/// on the machine.
const REST: u32 = 20;

/// A lease that was taken away.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedOut {
    /// Where it was.
    pub file: String,
    /// Who had it, for people.
    pub holder: String,
    /// And its number.
    pub pid: u32,
    /// For how long it was seen being broken.
    pub after: Duration,
}

/// A lease: the inode of its file and the process that has it.
type Lease = (u64, u32);

/// The leases of a mount that are being broken.
#[derive(Debug)]
pub struct Leases {
    major: u32,
    minor: u32,
    breaks: Breaks,
    next_look: Instant,
}

impl Leases {
    /// Of the mount with this device number.
    pub fn of_mount(device: u64) -> Leases {
        Leases {
            major: rustix::fs::major(device),
            minor: rustix::fs::minor(device),
            breaks: Breaks::default(),
            next_look: Instant::now(),
        }
    }

    /// Looks, and tells which have timed out since the last look.
    pub fn timed_out(&mut self) -> Vec<TimedOut> {
        let begun = Instant::now();
        if begun < self.next_look {
            return Vec::new();
        }
        let found = self.look(begun);
        self.next_look = Instant::now() + begun.elapsed() * REST;
        found.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot look at the leases");
            Vec::new()
        })
    }

    fn look(&mut self, now: Instant) -> io::Result<Vec<TimedOut>> {
        let breaking = kernel::breaking_leases(self.major, self.minor)?;
        if breaking.is_empty() && self.breaks.0.is_empty() {
            return Ok(Vec::new());
        }
        if self.breaks.knows(&breaking) {
            // Nothing has begun, so nobody need be named.
            return Ok(self.breaks.look(Vec::new(), &breaking, now, break_time()));
        }
        let mut report = Report::default();
        kernel::add_leases(&mut report, self.major, self.minor)?;
        let named = report.files.iter().flat_map(|file| {
            let name = words::name(file);
            let leases = file.locks.iter().filter(|held| held.breaking);
            leases.map(move |Held { lock, .. }| {
                let names = (name.clone(), words::who(lock));
                ((file.inode, lock.pid), names)
            })
        });
        Ok(self
            .breaks
            .look(named.collect(), &breaking, now, break_time()))
    }
}

/// After how long the kernel takes a lease away; `None` for never.
fn break_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/sys/fs/lease-break-time").ok()?;
    let seconds: u64 = text.trim().parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[derive(Debug)]
struct Break {
    since: Instant,
    file: String,
    holder: String,
}

/// The leases that were being broken at the last look.
#[derive(Debug, Default)]
struct Breaks(HashMap<Lease, Break>);

impl Breaks {
    fn knows(&self, breaking: &[Lease]) -> bool {
        breaking.iter().all(|lease| self.0.contains_key(lease))
    }

    /// What has gone although, or because, its time was up. `named` are file and holder of those that may be new.
    fn look(
        &mut self,
        named: Vec<(Lease, (String, String))>,
        breaking: &[Lease],
        now: Instant,
        limit: Option<Duration>,
    ) -> Vec<TimedOut> {
        let mut timed_out = Vec::new();
        self.0.retain(|lease, known| {
            let is_still = breaking.contains(lease);
            let after = now.saturating_duration_since(known.since);
            if !is_still && limit.is_some_and(|limit| after >= limit) {
                timed_out.push(TimedOut {
                    file: std::mem::take(&mut known.file),
                    holder: std::mem::take(&mut known.holder),
                    pid: lease.1,
                    after,
                });
            }
            is_still
        });
        for (lease, (file, holder)) in named {
            if breaking.contains(&lease) {
                self.0.entry(lease).or_insert(Break {
                    since: now,
                    file,
                    holder,
                });
            }
        }
        timed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = (7, 4711);
    const OTHER: Lease = (8, 4712);

    fn named(lease: Lease) -> (Lease, (String, String)) {
        let names = (format!("/m/{}", lease.0), format!("{} (prog)", lease.1));
        (lease, names)
    }

    #[test]
    fn a_lease_that_goes_when_its_time_is_up_is_told_once_and_one_given_up_is_not() {
        let mut breaks = Breaks::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let limit = Some(Duration::from_secs(45));
        let both = [LEASE, OTHER];
        assert!(!breaks.knows(&both));
        let new = both.map(named).to_vec();
        assert_eq!(breaks.look(new, &both, at(0), limit), []);
        assert!(breaks.knows(&both));
        // One is given up in time.
        assert_eq!(breaks.look(vec![], &[LEASE], at(44), limit), []);
        // Nobody has looked at it since its time was up: the kernel takes it when somebody does.
        assert_eq!(breaks.look(vec![], &[LEASE], at(50), limit), []);
        let told = breaks.look(vec![], &[], at(60), limit);
        let expected = TimedOut {
            file: "/m/7".into(),
            holder: "4711 (prog)".into(),
            pid: 4711,
            after: Duration::from_secs(60),
        };
        assert_eq!(told, [expected]);
        assert_eq!(breaks.look(vec![], &[], at(61), limit), []);
    }

    #[test]
    fn where_leases_have_no_time_none_times_out() {
        let mut breaks = Breaks::default();
        let begun = Instant::now();
        breaks.look(vec![named(LEASE)], &[LEASE], begun, None);
        let later = begun + Duration::from_secs(9999);
        assert_eq!(breaks.look(vec![], &[], later, None), []);
    }
}
