//! How the parameters of a unit share one flat buffer.

use std::ops::Range;

use tensor::{DType, ModelLayout, ParamId};

/// Parameters begin at multiples of this many bytes, which suits every cache line, vector register and shard border.
const ALIGN_BYTES: usize = 256;

/// Parameters of one unit with one dtype, side by side in a flat buffer.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// The parameters and the elements they occupy.
    pub(crate) slots: Vec<(ParamId, Range<usize>)>,
    /// Elements of the buffer, padding included.
    pub(crate) len: usize,
}

impl Group {
    /// Lays out the given parameters in order.
    pub(crate) fn new(layout: &ModelLayout, params: &[ParamId], dtype: DType) -> Self {
        let align = ALIGN_BYTES / dtype.size_bytes();
        let mut len = 0usize;
        let slots = params
            .iter()
            .map(|&id| {
                let start = len;
                let end = start + layout.param(id).shape.num_elements();
                len = end.next_multiple_of(align);
                (id, start..end)
            })
            .collect();
        Self { slots, len }
    }

    /// The stretches that belong to no parameter.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.slots.iter().skip(1).map(|(_, range)| range.start).chain([self.len]);
        self.slots.iter().zip(ends).map(|((_, range), next)| range.end..next).filter(|gap| !gap.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use tensor::{Init, ParamSpec, Shape};

    use super::*;

    #[test]
    fn parameters_are_aligned_and_gaps_are_what_is_left() {
        let spec =
            |n: usize| ParamSpec { name: n.to_string(), shape: Shape::from([n]), meaning: "(n)", init: Init::Ones };
        let layout = ModelLayout { params: [3, 64, 65].map(spec).to_vec(), units: vec![] };
        let group = Group::new(&layout, &[ParamId(0), ParamId(1), ParamId(2)], DType::F32);
        assert_eq!(group.slots.iter().map(|(_, r)| r.clone()).collect::<Vec<_>>(), [0..3, 64..128, 128..193]);
        assert_eq!(group.len, 256);
        assert_eq!(group.gaps().collect::<Vec<_>>(), [3..64, 193..256]);
    }
}
