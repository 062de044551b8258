//! Scratch memory of one worker: f32 arrays that are cut from one block, which grows and is kept.

use crate::region::Region;

/// Elements of a cache line; every array begins at one.
const LINE: usize = 16;

/// Reused memory of a worker.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Option<Region>);

impl Scratch {
    /// Bytes that it holds.
    pub(crate) fn len_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Region::len_bytes)
    }

    /// Arrays of the given lengths, aligned to cache lines, with any contents.
    /// Panics: if the system has no memory left.
    pub(crate) fn arrays<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        let total: usize = lengths.iter().map(|len| len.next_multiple_of(LINE)).sum();
        let num_bytes = total.max(LINE) * size_of::<f32>();
        if self.0.as_ref().is_none_or(|region| region.len_bytes() < num_bytes) {
            self.0 = None;
            self.0 = Some(Region::new(num_bytes).expect("the system has memory for the scratch of a worker"));
        }
        let region = self.0.as_mut().expect("made above");
        let mut rest: &mut [f32] = bytemuck::cast_slice_mut(region.bytes_mut());
        lengths.map(|len| {
            let (array, tail) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(LINE));
            rest = tail;
            &mut array[..len]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_aligned_and_the_block_is_kept() {
        let mut scratch = Scratch::default();
        let [a, b, c] = scratch.arrays([3, 0, 17]);
        assert_eq!((a.len(), b.len(), c.len()), (3, 0, 17));
        for array in [&*a, &*c] {
            assert_eq!(array.as_ptr() as usize % 64, 0);
        }
        a.fill(1.0);
        c.fill(2.0);
        assert_eq!(a, [1.0; 3]);
        let at = a.as_ptr();
        let [again] = scratch.arrays([20]);
        assert_eq!(again.as_ptr(), at);
    }
}
