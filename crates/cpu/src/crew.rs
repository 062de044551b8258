//! How ops share out their work: a team of threads, scratch memory of each worker, and outputs split by rows.
//!
//! Tasks are taken from a counter, so a worker that is held up takes fewer. That never shows in results: each element of an
//! output belongs to one task, and sums over tasks are taken in the order of tasks.
#![expect(unsafe_code, reason = "gives each task its own rows of a shared output")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::scratch::Scratch;
use crate::team::Team;

/// Elements that are worth waking another thread for.
pub(crate) const MIN_ELEMENTS: usize = 16 * 1024;

/// A team with a scratch memory for each worker.
pub(crate) struct Crew {
    team: Team,
    scratch: Vec<Mutex<Scratch>>,
}

impl Crew {
    /// A crew of `num_threads`, the caller counted, on the cores from `first_core` on.
    pub(crate) fn new(num_threads: usize, first_core: usize) -> Result<Self, Error> {
        let scratch = (0..num_threads).map(|_| Mutex::default()).collect();
        Ok(Self { team: Team::new(num_threads, first_core)?, scratch })
    }

    /// Workers of the crew.
    pub(crate) fn num_threads(&self) -> usize {
        self.team.num_threads()
    }

    /// Scratch memory of all workers, in bytes.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.scratch.iter().map(|s| s.lock().unwrap_or_else(PoisonError::into_inner).len_bytes()).sum()
    }

    /// Runs the tasks 0 to `num_tasks` - 1, each once, on whichever worker is free.
    pub(crate) fn run(&self, num_tasks: usize, task: impl Fn(usize, &mut Scratch) + Sync) {
        let next = AtomicUsize::new(0);
        let work = |worker: usize| {
            let mut scratch = self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= num_tasks {
                    return;
                }
                task(index, &mut scratch);
            }
        };
        if num_tasks <= 1 { work(0) } else { self.team.run(&work) }
    }

    /// Splits `num_rows` rows into tasks of `rows_per_task` and gives each its rows of the outputs.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "parts live as long as the outputs' borrows, so they are given once"
    )]
    pub(crate) fn run_rows<O: Outputs>(
        &self,
        num_rows: usize,
        rows_per_task: usize,
        outputs: O,
        task: impl Fn(Range<usize>, O::Part, &mut Scratch) + Sync,
    ) {
        let rows_per_task = rows_per_task.max(1);
        self.run(num_rows.div_ceil(rows_per_task), |index, scratch| {
            let start = index * rows_per_task;
            let rows = start..(start + rows_per_task).min(num_rows);
            // SAFETY: the ranges of different tasks do not overlap, each task runs once, and the outputs end here.
            let part = unsafe { outputs.part(rows.clone()) };
            task(rows, part, scratch);
        });
    }

    /// Rows of `width` elements that make a task large enough, and tasks numerous enough for all workers.
    pub(crate) fn rows_per_task(&self, num_rows: usize, width: usize) -> usize {
        let least = MIN_ELEMENTS.div_ceil(width.max(1));
        num_rows.div_ceil(4 * self.num_threads()).max(least)
    }

    /// Runs over parts of elementwise outputs.
    pub(crate) fn run_elements<O: Outputs>(&self, len: usize, outputs: O, task: impl Fn(Range<usize>, O::Part) + Sync) {
        // Few large parts: streams of memory like to be long. A multiple of a page keeps the workers' pages apart.
        let per_task = self.rows_per_task(len, 1).next_multiple_of(4096).min(1 << 20);
        self.run_rows(len, per_task, outputs, |range, part, _| task(range, part));
    }
}

/// A slice whose parts are written by several workers.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Disjoint` stands for a `&mut [T]`; `slice` hands out parts whose users promise not to overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes the slice for as long as parts of it are handed out.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// A part of the slice. Panics: if it is outside.
    ///
    /// # Safety
    /// No two parts that are in use at the same time overlap.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside of its slice");
        // SAFETY: the range lies inside of the slice that was taken for 'a; the caller promises that it is not shared.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Outputs that can be split by rows.
pub(crate) trait Outputs: Sync {
    /// Some rows of the outputs.
    type Part;

    /// The rows `rows`.
    ///
    /// # Safety
    /// No two parts that are in use at the same time overlap.
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part;
}

/// Rows of `width` elements; the last one may be shorter.
pub(crate) struct Rows<'a, T> {
    slice: Disjoint<'a, T>,
    width: usize,
}

impl<'a, T> Rows<'a, T> {
    /// The rows of a slice.
    pub(crate) fn new(slice: &'a mut [T], width: usize) -> Self {
        Self { slice: Disjoint::new(slice), width }
    }
}

impl<'a, T: Send> Outputs for Rows<'a, T> {
    type Part = &'a mut [T];

    unsafe fn part(&self, rows: Range<usize>) -> &'a mut [T] {
        let end = (rows.end * self.width).min(self.slice.len);
        // SAFETY: different rows are different ranges; the caller promises that the rows do not overlap.
        unsafe { self.slice.slice(rows.start * self.width..end) }
    }
}

impl<O: Outputs> Outputs for Option<O> {
    type Part = Option<O::Part>;

    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: promised by the caller.
        self.as_ref().map(|outputs| unsafe { outputs.part(rows) })
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    type Part = (A::Part, B::Part);

    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: promised by the caller.
        unsafe { (self.0.part(rows.clone()), self.1.part(rows)) }
    }
}

impl<A: Outputs, B: Outputs, C: Outputs> Outputs for (A, B, C) {
    type Part = (A::Part, B::Part, C::Part);

    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: promised by the caller.
        unsafe { (self.0.part(rows.clone()), self.1.part(rows.clone()), self.2.part(rows)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_given_out_once() {
        for num_threads in [1, 2, 3] {
            let crew = Crew::new(num_threads, 0).unwrap();
            for (num_rows, rows_per_task) in [(0, 1), (1, 1), (7, 2), (100, 7), (5, 100), (5, 0)] {
                let (mut wide, mut narrow) = (vec![0u32; num_rows * 3], vec![0u32; num_rows]);
                let outputs = (Rows::new(&mut wide, 3), Some(Rows::new(&mut narrow, 1)));
                crew.run_rows(num_rows, rows_per_task, outputs, |rows, (wide, narrow), _| {
                    assert_eq!(wide.len(), rows.len() * 3);
                    for v in wide {
                        *v += 1;
                    }
                    for (v, row) in narrow.expect("given").iter_mut().zip(rows) {
                        *v += 1 + row as u32;
                    }
                });
                assert!(wide.iter().all(|&v| v == 1));
                assert!(narrow.iter().enumerate().all(|(row, &v)| v == 1 + row as u32));
            }
        }
    }

    #[test]
    #[should_panic(expected = "a part lies inside of its slice")]
    fn parts_outside_are_refused() {
        let mut x = [0u8; 4];
        let all = Disjoint::new(&mut x);
        // SAFETY: the only part.
        let _ = unsafe { all.slice(1..5) };
    }
}
