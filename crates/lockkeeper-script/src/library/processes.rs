//! Processes and threads, and the descriptors that they share: how they begin and what their end takes
//! with it.

use lockkeeper::Waits;

use super::*;

impl Library {
    /// Begins the actor's process at its first mention.
    pub(super) fn be_born(&mut self, name: &Actor) {
        if !self.threads.contains_key(name) {
            self.begin_process(name, Vec::new());
        }
    }

    fn begin_process(&mut self, name: &Actor, descriptors: Vec<Option<Open>>) {
        self.processes.push(Process {
            name: name.clone(),
            descriptors,
            notified: false,
        });
        let process = self.processes.len() - 1;
        let thread = Thread {
            process,
            pending: None,
        };
        self.threads.insert(name.clone(), thread);
    }

    pub(super) fn fork(&mut self, name: &Actor, child: &Actor) -> Carried<Outcome> {
        let copies = self.processes[self.thread(name)?.process]
            .descriptors
            .clone();
        for copy in copies.iter().flatten() {
            self.descriptions[copy.description].references += 1;
        }
        self.begin_process(child, copies);
        Ok(Outcome::Ok)
    }

    pub(super) fn begin_thread(&mut self, name: &Actor, new: &Actor) -> Carried<Outcome> {
        let process = self.thread(name)?.process;
        let thread = Thread {
            process,
            pending: None,
        };
        self.threads.insert(new.clone(), thread);
        Ok(Outcome::Ok)
    }

    /// The other threads end, with what they wait for. All else stays.
    pub(super) fn exec(&mut self, name: &Actor) -> Carried<Outcome> {
        let process = self.thread(name)?.process;
        for pending in self.end_threads(process, Some(name)) {
            self.abandon(&pending);
        }
        Ok(Outcome::Ok)
    }

    /// Exit and SIGKILL, in the kernel's order: what the threads wait for ends, then closing each
    /// descriptor drops the POSIX locks on its file, then the descriptions are let go, the last first.
    pub(super) fn end_process(&mut self, name: &Actor) -> Carried<Outcome> {
        let process = self.thread(name)?.process;
        // Waits for POSIX locks end along with the locks.
        let (posix, others): (Vec<Pending>, Vec<Pending>) = self
            .end_threads(process, None)
            .into_iter()
            .partition(|call| call.result.is_none() && call.is_posix());
        for call in &others {
            self.abandon(call);
        }
        let descriptors = std::mem::take(&mut self.processes[process].descriptors);
        let open = descriptors.iter().flatten().map(|open| open.description);
        let used = posix.iter().map(|call| call.description);
        let mut files = Vec::new();
        for description in open.clone().chain(used) {
            let file = self.descriptions[description].file;
            if !files.contains(&file) {
                files.push(file);
            }
        }
        let owner = posix_owner(process);
        for file in files {
            let handle = &self.files[file].handle;
            handle.release_owner(&owner, Waits::Interrupt);
            self.settle();
        }
        let used = posix.iter().map(|call| call.description);
        for description in used.chain(open.rev()) {
            self.let_go(description);
            self.settle();
        }
        Ok(Outcome::Ok)
    }

    /// Takes the threads of a process away, but for one to spare; returns the calls that they are in, in
    /// the order in which these were made.
    fn end_threads(&mut self, process: usize, spared: Option<&Actor>) -> Vec<Pending> {
        let mut calls = Vec::new();
        self.threads.retain(|name, thread| {
            let stays = thread.process != process || Some(name) == spared;
            if !stays {
                calls.extend(thread.pending.take());
            }
            stays
        });
        calls.sort_by_key(|call| call.id);
        calls
    }

    pub(super) fn dup(
        &mut self,
        name: &Actor,
        fd: &Descriptor,
        new: &Descriptor,
    ) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        self.install(self.thread(name)?.process, new, description);
        Ok(Outcome::Ok)
    }

    /// Gives a process a descriptor.
    pub(super) fn install(&mut self, process: usize, fd: &Descriptor, description: usize) {
        self.descriptions[description].references += 1;
        let open = Some(Open {
            name: fd.clone(),
            description,
        });
        let descriptors = &mut self.processes[process].descriptors;
        match descriptors.iter().position(Option::is_none) {
            Some(free) => descriptors[free] = open,
            None => descriptors.push(open),
        }
    }

    /// close(2): drops all POSIX locks that the process has on the file, whichever descriptor they were
    /// taken through. A call that waits through this very descriptor waits on, in vain.
    pub(super) fn close(&mut self, name: &Actor, fd: &Descriptor) -> Carried<Outcome> {
        let (number, description) = self.open(name, fd)?;
        let process = self.thread(name)?.process;
        let file = self.descriptions[description].file;
        self.processes[process].descriptors[number] = None;
        // The library closes all waits of an owner on a file or none.
        let mut waits = Waits::Keep;
        let mut others = false;
        for thread in self.threads.values_mut() {
            let Some(pending) = &mut thread.pending else {
                continue;
            };
            if thread.process != process || pending.result.is_some() || !pending.is_posix() {
                continue;
            }
            if pending.verb.descriptor() == Some(fd) {
                pending.closed = true;
                waits = Waits::Close;
            }
            let of_the_file = self.descriptions[pending.description].file == file;
            others |= of_the_file && !pending.closed;
        }
        if others {
            waits = Waits::Keep;
        }
        let owner = posix_owner(process);
        self.files[file].handle.release_owner(&owner, waits);
        self.settle();
        self.let_go(description);
        Ok(Outcome::Ok)
    }

    /// Gives a reference of a description back. With the last one go its locks and its lease.
    pub(super) fn let_go(&mut self, description: usize) {
        let references = &mut self.descriptions[description].references;
        *references = references.saturating_sub(1);
        if *references == 0 {
            let owner = open_file_id(description).into();
            let handle = &self.file_of(description).handle;
            handle.release_owner(&owner, Waits::Keep);
        }
    }
}
