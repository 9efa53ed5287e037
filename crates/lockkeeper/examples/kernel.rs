//! The table alone, as a kernel without std would use it: it never blocks, reads
//! no clock and starts no thread. The kernel brings the sleepers, the time, and
//! the look at deadlocks over its files.

use lockkeeper::deadlock::{Edge, WaitGraph, find_cycle};
use lockkeeper::table::{Context, Lock, Request, Settings, Table};
use lockkeeper::{LockError, LockType, Owner, ProcessId, Range, Time, WaiterId};

/// Names a task that sleeps in a system call.
type Sleeper = u32;

/// Two files. A kernel has one table an inode, each behind the inode's lock.
struct Kernel {
    settings: Settings,
    files: [Table<Sleeper>; 2],
    ticks: u64,
    woken: Vec<(Sleeper, Result<(), LockError>)>,
}

/// Who waits for whom, over all files.
impl WaitGraph for Kernel {
    type Wait = (usize, WaiterId);

    fn blockers(
        &mut self,
        &(file, id): &(usize, WaiterId),
        visit: &mut dyn FnMut(&Owner, Edge) -> bool,
    ) {
        self.files[file].visit_blockers(id, visit);
    }

    fn waits_of(&mut self, owner: &Owner, visit: &mut dyn FnMut((usize, WaiterId))) {
        for (file, table) in self.files.iter().enumerate() {
            table.visit_waits_of(owner, &mut |id| visit((file, id)));
        }
    }
}

impl Kernel {
    /// fcntl(F_SETLKW): true if it is granted at once, false if the task is to
    /// sleep until it is woken.
    fn setlkw(&mut self, file: usize, process: u64, range: Range) -> Result<bool, LockError> {
        self.ticks += 1;
        let owner = Owner::from(ProcessId(process));
        let request = Request::record(owner.clone(), LockType::Write, range);
        let cx = Context::new(Time(self.ticks), &self.settings);
        let sleeper = process as Sleeper;
        let id = match self.files[file].lock(request, sleeper, cx) {
            Ok(Lock::Granted(_)) => return Ok(true),
            Ok(Lock::Waiting(id)) => id,
            Err((error, _)) => return Err(error),
        };
        // With every file locked, as here, one look is enough.
        if let Some(cycle) = find_cycle(self, &(file, id), &owner, false) {
            let info = self.files[file].blocker_info(id, &cycle[0].waits_for);
            let cx = Context::new(Time(self.ticks), &self.settings);
            self.files[file].refuse_deadlock(id, cx).expect("it waits");
            return Err(LockError::Deadlock(info.expect("it is in the way")));
        }
        Ok(false)
    }

    /// fcntl(F_SETLK) with F_UNLCK: wakes whom that frees.
    fn unlock(&mut self, file: usize, process: u64, range: Range) -> Result<(), LockError> {
        self.ticks += 1;
        let cx = Context::new(Time(self.ticks), &self.settings);
        self.files[file].unlock(&ProcessId(process).into(), range, cx)?;
        while let Some(ended) = self.files[file].next_ended() {
            self.woken.push((ended.ticket, ended.result));
        }
        Ok(())
    }
}

fn main() -> Result<(), LockError> {
    let mut kernel = Kernel {
        settings: Settings::default(),
        files: [Table::new(), Table::new()],
        ticks: 0,
        woken: Vec::new(),
    };
    let ten = Range::new(0, 9)?;
    assert!(kernel.setlkw(0, 1, ten)?);
    assert!(kernel.setlkw(1, 2, ten)?);
    println!("process 1 has file 0, process 2 has file 1");

    assert!(!kernel.setlkw(1, 1, ten)?);
    println!("process 1 sleeps for file 1");

    let refused = kernel.setlkw(0, 2, ten).expect_err("a deadlock");
    println!("process 2 wants file 0: {}, {refused}", refused.errno());
    assert_eq!(refused.errno(), lockkeeper::Errno::EDEADLK);

    kernel.unlock(1, 2, Range::WHOLE)?;
    println!("process 2 unlocks file 1; woken: {:?}", kernel.woken);
    assert_eq!(kernel.woken, [(1, Ok(()))]);
    for table in &kernel.files {
        table.check_invariants();
    }
    Ok(())
}
