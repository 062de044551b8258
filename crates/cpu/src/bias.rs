//! Bias of a linear layer: y += b for every row, and the sum of rows for its gradient.
//!
//! Numbers: computed in f32, rounded once. db is summed over blocks of [`ROWS`] rows, then over blocks in order, whatever the number
//!          of threads.

use tensor::ops::bias::{check_backward, check_in_place};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Temp, Write};
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, with_element};
use crate::pack::store;
use crate::rms_norm::{ROWS, sum_rows};

per_isa! {
    fn add_to_rows<const FMA: bool, T: Element>(y: &mut [T], b: &[T]) {
        for row in y.chunks_exact_mut(b.len().max(1)) {
            for (y, b) in row.iter_mut().zip(b) {
                *y = T::from_f32(y.to_f32() + b.to_f32());
            }
        }
    }
}

per_isa! {
    fn sum_of_rows<const FMA: bool, T: Element>(sum: &mut [f32], rows: &[T]) {
        sum.fill(0.0);
        for row in rows.chunks_exact(sum.len().max(1)) {
            for (sum, x) in sum.iter_mut().zip(row) {
                *sum += x.to_f32();
            }
        }
    }
}

/// `y += b` for every row.
pub(crate) fn in_place(backend: &CpuBackend, y: &mut Tensor, b: &Tensor) -> Result<()> {
    let (num_rows, dim) = check_in_place(y, b)?;
    with_element!(y.dtype(), T => {
        let b = Read::<T>::of(b)?;
        let mut y = Write::<T>::of(y)?;
        let per_task = backend.crew.rows_per_task(num_rows, dim);
        backend.crew.run_rows(num_rows, per_task, Rows::new(&mut y, dim), |_, y, _| add_to_rows(backend.isa, y, &b));
    });
    Ok(())
}

/// `db (+)= sum of rows of dy`.
pub(crate) fn backward(backend: &CpuBackend, db: &mut Tensor, dy: &Tensor, accumulate: bool) -> Result<()> {
    let (num_rows, dim) = check_backward(db, dy)?;
    with_element!(dy.dtype(), T => {
        let dy = Read::<T>::of(dy)?;
        let num_tasks = num_rows.div_ceil(ROWS);
        let mut parts = Temp::new(&backend.pool, num_tasks * dim)?;
        backend.crew.run_rows(num_tasks, 1, Rows::new(&mut parts, dim), |task, part, _| {
            let rows = task.start * ROWS..(task.end * ROWS).min(num_rows);
            sum_of_rows(backend.isa, part, &dy[rows.start * dim..rows.end * dim]);
        });
        let mut sum = Temp::new(&backend.pool, dim)?;
        sum_rows(backend.isa, &mut sum, &parts);
        with_element!(db.dtype(), O => store(backend.isa, &mut Write::<O>::of(db)?, &sum, accumulate));
    });
    Ok(())
}
