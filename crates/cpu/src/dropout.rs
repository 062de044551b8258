//! Dropout in place: four elements from each counter of the stream.

use tensor::ops::dropout::{Dropout, check_in_place};
use tensor::{Result, Tensor};

use crate::CpuBackend;
use crate::buffer::Write;
use crate::crew::Rows;
use crate::isa::per_isa;
use crate::numbers::{Element, with_element};

per_isa! {
    /// Elements from `start` on, a multiple of 4.
    fn drop_slice<const FMA: bool, T: Element>(x: &mut [T], start: u64, dropout: &Dropout) {
        let (threshold, factor) = (dropout.threshold(), dropout.factor());
        for (index, four) in (start / 4..).zip(x.chunks_mut(4)) {
            for (x, word) in four.iter_mut().zip(dropout.stream.words(index)) {
                *x = if word >= threshold { T::from_f32(x.to_f32() * factor) } else { T::ZERO };
            }
        }
    }
}

/// Drops elements.
pub(crate) fn in_place(backend: &CpuBackend, x: &mut Tensor, dropout: &Dropout) -> Result<()> {
    let len = check_in_place(x)?;
    with_element!(x.dtype(), T => {
        let mut x = Write::<T>::of(x)?;
        // Parts begin at multiples of a page, so of four elements.
        let outputs = Rows::new(&mut x, 1);
        backend.crew.run_elements(len, outputs, |part, x| drop_slice(backend.isa, x, part.start as u64, dropout));
    });
    Ok(())
}
