//! Decides when things have settled: every call that is out has returned, or waits for a lock.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno as SystemErrno;

use super::posture::Posture;
use super::terms::*;
use super::{Carried, Directory, Pending, protocol};
use crate::script::*;

impl Directory {
    /// Waits until every call that is out has returned or waits for a lock, and takes the results.
    ///
    /// Where the kernel does not show that a call waits, the settling time decides. It is spent only where
    /// something `depends` on it.
    pub(super) fn settle(&mut self, depends: bool) -> Carried<()> {
        let names: Vec<Actor> = self
            .actors
            .iter()
            .filter(|(_, thread)| {
                matches!(&thread.pending, Some(Pending { result: None, .. })) && thread.alive
            })
            .map(|(name, _)| name.clone())
            .collect();
        let begin = Instant::now();
        let mut last_look = Vec::new();
        let mut open = names;
        while !open.is_empty() {
            let mut changed = false;
            let mut running = false;
            let mut asleep = false;
            let mut look = Vec::with_capacity(open.len());
            let mut still_open = Vec::with_capacity(open.len());
            for name in open {
                match self.take_result(&name)? {
                    true => changed = true,
                    false => {
                        match self.posture(&name)? {
                            Posture::Running => running = true,
                            Posture::Asleep => asleep = true,
                            Posture::Waiting { runs } => look.push(runs),
                        }
                        still_open.push(name);
                    }
                }
            }
            open = still_open;
            if !changed && !running {
                let seen = !asleep && !self.options.strict;
                // Twice the same look: every thread slept from the end of the first to the begin of the
                // second, all at once.
                if seen && look == last_look {
                    return Ok(());
                }
                if !seen && (!depends || begin.elapsed() >= self.options.settling) {
                    return Ok(());
                }
            }
            if begin.elapsed() > self.options.patience {
                return Ok(());
            }
            let quiet = !changed && !running && !asleep && !self.options.strict;
            last_look = if quiet { look } else { Vec::new() };
            if !quiet || last_look.is_empty() {
                self.pause(&open, if asleep { 1000 } else { 60 })?;
            }
        }
        Ok(())
    }

    /// Waits a moment for any of these to return.
    pub(super) fn pause(&self, names: &[Actor], microseconds: i64) -> Carried<()> {
        let mut channels = Vec::with_capacity(names.len());
        for name in names {
            channels.push(PollFd::new(&self.thread(name)?.channel, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: microseconds * 1000,
        };
        // An interrupted pause is short, which does no harm.
        let _ = rustix::event::poll(&mut channels, Some(&timeout));
        Ok(())
    }

    /// Takes the result of a call that is out, if it has come.
    pub(super) fn take_result(&mut self, name: &Actor) -> Carried<bool> {
        match protocol::take_reply(&self.thread(name)?.channel) {
            Ok(Some(reply)) => self.returned(name, reply).map(|()| true),
            Err(SystemErrno::AGAIN) => Ok(false),
            Ok(None) | Err(_) => Err(lost(name)),
        }
    }

    pub(super) fn posture(&mut self, name: &Actor) -> Carried<Posture> {
        let thread = self.thread(name)?;
        let posture = thread.probe.posture().map_err(|_| lost(name))?;
        if posture != Posture::Asleep {
            return Ok(posture);
        }
        let pid = self.processes[thread.process].pid;
        let file = &self.pending(name)?.file;
        let identity = self.files.get(file).cloned();
        let shown = identity.is_some_and(|file| self.listing.shows_waiter(&file, pid));
        Ok(match shown {
            true => Posture::Waiting { runs: 0 },
            false => Posture::Asleep,
        })
    }
}
