//! The files of a script, and what the place tells of their locks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::listing::{self, Entry, FileIdentity};
use super::terms::*;
use super::{Carried, Directory, Pending, Thread};
use crate::executor::ExecutorError;
use crate::script::*;

impl Directory {
    /// The path of the file, which is created where it is new.
    pub(super) fn create(&mut self, file: &FileName) -> Carried<PathBuf> {
        if let Some(identity) = self.files.get(file) {
            return Ok(identity.path.clone());
        }
        let path = self.folder.join(file.as_str());
        let created = fs::File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|created| created.metadata());
        let metadata = created.map_err(|error| {
            ExecutorError::place(format!("cannot create {}", path.display()), error)
        })?;
        let identity = FileIdentity {
            path: path.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        self.files.insert(file.clone(), identity);
        Ok(path)
    }

    pub(super) fn identity(&self, file: &FileName) -> Carried<&FileIdentity> {
        self.files
            .get(file)
            .ok_or_else(|| ExecutorError::Misuse(format!("there is no file `{file}`")))
    }

    pub(super) fn path(&self, file: &FileName) -> Carried<PathBuf> {
        self.identity(file).map(|identity| identity.path.clone())
    }

    pub(super) fn list(&mut self, file: &FileName, waiting: bool) -> Carried<Vec<Entry>> {
        self.settle(true)?;
        let identity = self.identity(file)?.clone();
        let mut entries = self
            .listing
            .entries(&identity)
            .map_err(|error| ExecutorError::place("cannot list the locks", error))?;
        entries.retain(|entry| entry.waiting == waiting);
        Ok(entries)
    }

    pub(super) fn held(&mut self, file: &FileName) -> Carried<Outcome> {
        let entries = self.list(file, false)?;
        let (mut unclaimed, hidden) = match entries.iter().any(|entry| entry.kind == ItemKind::Ofd)
        {
            true => self.ofd_takers(file),
            false => (Vec::new(), Vec::new()),
        };
        let mut items: Vec<Item> = entries
            .iter()
            .map(|entry| {
                let span = Span::inclusive(entry.start, entry.end);
                let actor = match entry.pid {
                    None => {
                        let claim = unclaimed.iter().position(|(taken, _)| *taken == span);
                        match claim {
                            Some(claim) => unclaimed.swap_remove(claim).1,
                            None => self.hidden_taker(&hidden, entry.start),
                        }
                    }
                    Some(pid) => self.name_of(pid),
                };
                item(entry, actor)
            })
            .collect();
        Item::sort(&mut items);
        Ok(Outcome::Listing(items))
    }

    /// The OFD locks of the file, by what the descriptors of living processes keep, with their takers; and
    /// the descriptions of the file that are used by a call alone, since their descriptors are closed.
    fn ofd_takers(&self, file: &FileName) -> (Vec<(Span, Actor)>, Vec<usize>) {
        let mut seen = Vec::new();
        let mut takers = Vec::new();
        for process in self.processes.iter().filter(|process| process.alive) {
            for open in process.descriptors.values() {
                let used = !self.descriptions[open.description].taken.is_empty();
                let of_the_file = self.is_of(open.description, file);
                if !used || !of_the_file || seen.contains(&open.description) {
                    continue;
                }
                seen.push(open.description);
                for (start, end) in listing::ofd_locks_of(process.pid, open.number) {
                    if let Some(taker) = self.taker_at(open.description, start) {
                        takers.push((Span::inclusive(start, end), taker));
                    }
                }
            }
        }
        let calls = self.actors.values().filter(|thread| thread.alive);
        let hidden = calls
            .filter_map(|thread| thread.pending.as_ref()?.description)
            .filter(|description| self.is_of(*description, file) && !seen.contains(description))
            .collect();
        (takers, hidden)
    }

    fn is_of(&self, description: usize, file: &FileName) -> bool {
        self.same_file(&self.descriptions[description].file, file)
    }

    /// Whether the two are names of one file.
    fn same_file(&self, a: &FileName, b: &FileName) -> bool {
        let inode = |file: &FileName| self.files.get(file).map(|file| file.inode);
        inode(a) == inode(b)
    }

    /// Which process took the OFD lock of a description that begins there.
    fn taker_at(&self, description: usize, start: i64) -> Option<Actor> {
        let taken = &self.descriptions[description].taken;
        let mut covering = taken.iter().rev();
        let (_, taker) = covering
            .find(|(span, _)| span.start <= start && start <= span.end())
            .or(taken.last())?;
        Some(self.processes[*taker].name.clone())
    }

    /// Which process took the lock that no descriptor keeps.
    fn hidden_taker(&self, hidden: &[usize], start: i64) -> Actor {
        let mut takers = hidden
            .iter()
            .filter_map(|description| self.taker_at(*description, start));
        takers.next().unwrap_or_else(|| Actor::outsider(-1))
    }

    pub(super) fn waiting(&mut self, file: &FileName) -> Carried<Outcome> {
        let entries = self.list(file, true)?;
        let mut calls: Vec<(u64, &Thread, &Pending)> = self
            .actors
            .values()
            .filter_map(|thread| {
                let pending = thread.pending.as_ref()?;
                let waits = pending.result.is_none() && self.same_file(&pending.file, file);
                waits.then_some((pending.arrival, thread, pending))
            })
            .collect();
        calls.sort_by_key(|(arrival, ..)| *arrival);
        let mut items: Vec<(u64, Item)> = entries
            .iter()
            .map(|entry| {
                let call = best_match(&calls, |(_, thread, pending)| {
                    let pid = self.processes[thread.process].pid;
                    likeness(entry, pid, &pending.verb)
                });
                match call {
                    Some(call) => {
                        let (arrival, thread, _) = calls.remove(call);
                        let name = self.processes[thread.process].name.clone();
                        (arrival, item(entry, name))
                    }
                    None => {
                        let name = match entry.pid {
                            Some(pid) => self.name_of(pid),
                            None => Actor::outsider(-1),
                        };
                        (u64::MAX, item(entry, name))
                    }
                }
            })
            .collect();
        items.sort_by_key(|(arrival, _)| *arrival);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Ok(Outcome::Listing(items))
    }
}
