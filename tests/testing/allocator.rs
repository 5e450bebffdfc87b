//! Allocators that count. A test binary makes one of them its own with `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator; the function is called before every allocation, on any thread. It may allocate if it makes
/// sure that this ends.
pub struct Counting(pub fn());

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        (self.0)();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread holds, and the most it has held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    /// What size is large, and the number of large allocations until one is refused; 0: none is.
    static REFUSED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count for each thread, so that tests side by side do not disturb each other. It can
/// refuse an allocation. A block that grows counts twice while it is copied.
pub struct PerThread;

fn hold(bytes: isize) {
    let (held, most) = HELD.get();
    HELD.set((held + bytes, most.max(held + bytes)));
}

/// Counts an allocation; `false` if it is to be refused.
fn admits(size: usize) -> bool {
    let (large, left) = REFUSED.get();
    if size >= large && left > 0 {
        REFUSED.set((large, left - 1));
        if left == 1 {
            return false;
        }
    }
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    hold(size as isize);
    true
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments, or gives no memory.
unsafe impl GlobalAlloc for PerThread {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !admits(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !admits(size) {
            return std::ptr::null_mut();
        }
        hold(-(layout.size() as isize));
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Allocations of this thread while `work` runs.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// What `work` returns, and the most bytes that it held at once beyond what this thread held before.
pub fn most_held<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get().0;
    HELD.set((before, before));
    let done = work();
    (done, usize::try_from(HELD.get().1 - before).unwrap())
}

/// Runs `work` with its `nth` allocation of at least `large` bytes refused; also whether there were so many.
pub fn with_refused<T>(large: usize, nth: usize, work: impl FnOnce() -> T) -> (T, bool) {
    REFUSED.set((large, nth));
    let done = work();
    let reached = REFUSED.replace((0, 0)).1 == 0;
    (done, reached)
}
