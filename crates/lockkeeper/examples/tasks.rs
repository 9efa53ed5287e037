//! Tasks that wait for locks without a thread each, on the smallest executor
//! there is: any other will do as well.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use lockkeeper::{FileHandle, FileId, LockError, LockManager, LockType, OpenFileId, Range};

type Task = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

/// Puts its task back into the queue of those to run.
struct Requeue(usize, Arc<Mutex<VecDeque<usize>>>);

impl Wake for Requeue {
    fn wake(self: Arc<Self>) {
        self.1.lock().expect("not poisoned").push_back(self.0);
    }
}

/// Runs tasks until all are done.
fn run(mut tasks: Vec<Option<Task>>) -> Result<(), LockError> {
    let ready = Arc::new(Mutex::new((0..tasks.len()).collect::<VecDeque<_>>()));
    while tasks.iter().any(Option::is_some) {
        let next = ready.lock().expect("not poisoned").pop_front();
        let index = next.expect("nobody can go on: a wake-up was lost");
        let waker = Waker::from(Arc::new(Requeue(index, ready.clone())));
        if let Some(task) = &mut tasks[index]
            && let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&waker))
        {
            result?;
            tasks[index] = None;
        }
    }
    Ok(())
}

async fn append(file: FileHandle, number: u64, log: Arc<Mutex<Vec<u64>>>) -> Result<(), LockError> {
    let records = file.ofd(OpenFileId(number));
    records.lock_async(LockType::Write, Range::WHOLE).await?;
    println!("task {number} has the lock");
    // Others run meanwhile, and wait for us.
    yield_once().await;
    log.lock().expect("not poisoned").push(number);
    records.unlock(Range::WHOLE)
}

/// Lets the other tasks run once.
async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn main() -> Result<(), LockError> {
    let manager = LockManager::new();
    let file = manager.file(FileId::new(8, 131));
    let log = Arc::new(Mutex::new(Vec::new()));
    let tasks = (1..=5).map(|number| {
        let task: Task = Box::pin(append(file.clone(), number, log.clone()));
        Some(task)
    });
    run(tasks.collect())?;
    let order = log.lock().expect("not poisoned").clone();
    println!("they wrote in the order {order:?}");
    assert_eq!(order, [1, 2, 3, 4, 5], "first come, first served");

    // A future that is dropped leaves nothing behind.
    let holder = file.ofd(OpenFileId(1));
    holder.try_lock(LockType::Write, Range::WHOLE)?;
    let mut waits = Box::pin(
        file.ofd(OpenFileId(2))
            .lock_async(LockType::Read, Range::WHOLE),
    );
    let mut cx = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    println!("{} waits", file.snapshot().waiting.len());
    drop(waits);
    println!("and has given up: {} waits", file.snapshot().waiting.len());
    assert!(file.snapshot().waiting.is_empty());
    Ok(())
}
