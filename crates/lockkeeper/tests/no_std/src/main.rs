//! A table of locks in a program without std, without a C library and without an
//! operating system but for its last call: what a kernel does. Exits with 0 if
//! the locks were as they should be.

#![no_std]
#![no_main]
// Or the loops below would become calls of the functions that they are in.
#![no_builtins]

use core::alloc::{GlobalAlloc, Layout};
use core::arch::asm;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::table::{BreakScope, Context, Lock, Openers, Request, Settings, Table, Waits};
use lockkeeper::{Errno, LockError, LockType, OpenFileId, ProcessId, Range, Time};

const HEAP: usize = 1 << 20;

/// A heap that only grows.
#[repr(align(64))]
struct Heap(core::cell::UnsafeCell<[u8; HEAP]>, AtomicUsize);

// SAFETY: the counter gives each byte away once.
unsafe impl Sync for Heap {}

// SAFETY: blocks are within the heap, aligned, and never overlap.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let room = layout.size() + layout.align();
        let used = self.1.fetch_add(room, Ordering::Relaxed);
        if used + room > HEAP || layout.align() > 64 {
            return null_mut();
        }
        let start = self.0.get().cast::<u8>();
        // SAFETY: `used + room` lies within the heap.
        unsafe { start.add(used.next_multiple_of(layout.align())) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Heap = Heap(core::cell::UnsafeCell::new([0; HEAP]), AtomicUsize::new(0));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// Named by `alloc`, which was built to unwind; nothing unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

fn exit(code: usize) -> ! {
    // SAFETY: exit(2) does not return.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", in("rax") 60, in("rdi") code, options(noreturn));
        #[cfg(target_arch = "aarch64")]
        asm!("svc 0", in("x8") 93, in("x0") code, options(noreturn));
    }
}

// Where the kernel begins: aligns the stack and calls.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".globl _start", "_start:", "and rsp, -16", "call begin");
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "bl begin");

#[unsafe(no_mangle)]
extern "C" fn begin() -> ! {
    exit(usize::from(run().is_err()))
}

fn run() -> Result<(), LockError> {
    let settings = Settings::default();
    let at = |seconds: u64| Context::new(Time(seconds * 1_000_000_000), &settings);
    let mut table = Table::new();
    for owner in 0..100 {
        let request = Request::record(ProcessId(owner), LockType::Write, Range::byte(owner)?);
        table.try_lock(&request, at(0))?;
    }
    let whole = Request::record(ProcessId(200), LockType::Read, Range::WHOLE);
    let conflict = table.try_lock(&whole, at(1)).map_err(|error| error.errno());
    assert!(conflict == Err(Errno::EAGAIN));
    let Ok(Lock::Waiting(id)) = table.lock(whole, 7_u32, at(1)) else {
        panic!("everything is taken");
    };
    for owner in 0..100 {
        table.release_owner(&ProcessId(owner).into(), Waits::Interrupt, at(2));
        table.check_invariants();
    }
    let ended = table.next_ended().expect("the last has gone");
    assert!((ended.id, ended.ticket, ended.result) == (id, 7, Ok(())));

    let (holder, opener) = (OpenFileId(1), OpenFileId(2).into());
    let openers = Openers::default();
    table.set_lease(
        holder.into(),
        ProcessId(1),
        LockType::Write,
        false,
        openers,
        at(3),
    )?;
    let scope = BreakScope::All;
    assert!(
        table
            .try_break_leases(&opener, LockType::Write, scope, at(4))
            .is_err()
    );
    assert!(table.expire(at(60))? == 1);
    table.try_break_leases(&opener, LockType::Write, scope, at(61))
}

/// What the compiler calls to move memory, by the rules of C.
mod memory {
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        for at in 0..len {
            // SAFETY: both blocks have `len` bytes.
            unsafe { *to.add(at) = *from.add(at) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if (to as usize) < from as usize {
            // SAFETY: the same; forwards reads each byte before it is written.
            return unsafe { memcpy(to, from, len) };
        }
        for at in (0..len).rev() {
            // SAFETY: the same, backwards.
            unsafe { *to.add(at) = *from.add(at) };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
        for at in 0..len {
            // SAFETY: the block has `len` bytes.
            unsafe { *to.add(at) = byte as u8 };
        }
        to
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        for at in 0..len {
            // SAFETY: both blocks have `len` bytes.
            let (a, b) = unsafe { (*a.add(at), *b.add(at)) };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
        // SAFETY: the contract is that of `memcmp`.
        unsafe { memcmp(a, b, len) }
    }
}
