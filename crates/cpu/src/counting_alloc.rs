//! An allocator that counts large allocations, for tests that a training step takes no memory from the system.
//!
//! It is the system's allocator with two counters, installed by a test binary of its own with `#[global_allocator]`.
//! Memory that is mapped without an allocator (regions of at least 1 MiB) is not seen; `Backend::memory` counts it.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting allocations over a threshold.
#[derive(Debug)]
pub struct CountingAllocator {
    threshold_bytes: usize,
    count: AtomicUsize,
    largest_bytes: AtomicUsize,
}

impl CountingAllocator {
    /// Counts allocations of more than `threshold_bytes`.
    pub const fn new(threshold_bytes: usize) -> Self {
        Self { threshold_bytes, count: AtomicUsize::new(0), largest_bytes: AtomicUsize::new(0) }
    }

    /// Forgets what was counted.
    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.largest_bytes.store(0, Ordering::Relaxed);
    }

    /// Allocations over the threshold, growing an allocation counted too.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes of the largest of them; 0 if there were none.
    pub fn largest_bytes(&self) -> usize {
        self.largest_bytes.load(Ordering::Relaxed)
    }

    fn note(&self, num_bytes: usize) {
        if num_bytes > self.threshold_bytes {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.largest_bytes.fetch_max(num_bytes, Ordering::Relaxed);
        }
    }
}

// SAFETY: every method hands its arguments to the system's allocator and gives back what that gave; counting allocates
// nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.note(new_size);
        // SAFETY: as above; `ptr` came from the system's allocator.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_over_the_threshold_counts() {
        let allocator = CountingAllocator::new(100);
        let small = Layout::from_size_align(100, 8).expect("a power of two");
        let large = Layout::from_size_align(200, 8).expect("a power of two");
        // SAFETY: the layouts have a size, and every pointer goes back with the layout that it has.
        unsafe {
            let kept = allocator.alloc(small);
            assert_eq!((allocator.count(), allocator.largest_bytes()), (0, 0));
            let grown = allocator.realloc(kept, small, 200);
            allocator.dealloc(grown, large);
            allocator.dealloc(allocator.alloc_zeroed(large), large);
        }
        assert_eq!((allocator.count(), allocator.largest_bytes()), (2, 200));
        allocator.reset();
        assert_eq!((allocator.count(), allocator.largest_bytes()), (0, 0));
    }
}
