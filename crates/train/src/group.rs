//! How the parameters of a unit share one flat buffer, and how ranks share the buffer.

use std::ops::Range;

use tensor::{DType, ModelLayout, ParamId};

/// Parameters begin at multiples of this many bytes, which suits every cache line, vector register and shard border.
const ALIGN_BYTES: usize = 256;

/// Parameters of one unit with one dtype, side by side in a flat buffer that is cut into shards of equal length.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// The parameters and the elements they occupy.
    pub(crate) slots: Vec<(ParamId, Range<usize>)>,
    /// Elements of the whole buffer, padding included.
    pub(crate) len: usize,
    /// Elements of a shard.
    pub(crate) shard_len: usize,
}

/// A stretch of a parameter that lies in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The parameter.
    pub(crate) param: ParamId,
    /// Which of its elements.
    pub(crate) of_param: Range<usize>,
    /// Where they lie in the shard.
    pub(crate) in_shard: Range<usize>,
}

impl Group {
    /// Lays out the given parameters in order, for `num_shards` shards.
    pub(crate) fn new(layout: &ModelLayout, params: &[ParamId], dtype: DType, num_shards: usize) -> Self {
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
        let shard_len = len.div_ceil(num_shards).next_multiple_of(align);
        Self { slots, len: shard_len * num_shards, shard_len }
    }

    /// The stretches that belong to no parameter.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.slots.iter().skip(1).map(|(_, range)| range.start).chain([self.len]);
        self.slots.iter().zip(ends).map(|((_, range), next)| range.end..next).filter(|gap| !gap.is_empty())
    }

    /// What a shard holds of the group's parameters, in order.
    pub(crate) fn stretches(&self, shard: usize) -> impl Iterator<Item = Stretch> + '_ {
        let of_shard = shard * self.shard_len..(shard + 1) * self.shard_len;
        self.slots.iter().filter_map(move |(param, slot)| {
            let (start, end) = (slot.start.max(of_shard.start), slot.end.min(of_shard.end));
            (start < end).then(|| Stretch {
                param: *param,
                of_param: start - slot.start..end - slot.start,
                in_shard: start - of_shard.start..end - of_shard.start,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensor::{Init, ParamSpec, Shape};

    use super::*;

    fn layout(lengths: &[usize]) -> (ModelLayout, Vec<ParamId>) {
        let spec =
            |&n: &usize| ParamSpec { name: n.to_string(), shape: Shape::from([n]), meaning: "(n)", init: Init::Ones };
        let ids = (0..lengths.len()).map(|id| ParamId(id as u32)).collect();
        (ModelLayout { params: lengths.iter().map(spec).collect(), units: vec![] }, ids)
    }

    #[test]
    fn parameters_are_aligned_and_gaps_are_what_is_left() {
        let (layout, ids) = layout(&[3, 64, 65]);
        let group = Group::new(&layout, &ids, DType::F32, 1);
        assert_eq!(group.slots.iter().map(|(_, r)| r.clone()).collect::<Vec<_>>(), [0..3, 64..128, 128..193]);
        assert_eq!((group.len, group.shard_len), (256, 256));
        assert_eq!(group.gaps().collect::<Vec<_>>(), [3..64, 193..256]);
    }

    #[test]
    fn borders_of_shards_are_aligned_too() {
        let (layout, ids) = layout(&[3, 64, 65]);
        let group = Group::new(&layout, &ids, DType::F32, 3);
        assert_eq!((group.len, group.shard_len), (384, 128));
        let stretch = |param, of_param, in_shard| Stretch { param: ParamId(param), of_param, in_shard };
        assert_eq!(group.stretches(0).collect::<Vec<_>>(), [stretch(0, 0..3, 0..3), stretch(1, 0..64, 64..128)]);
        assert_eq!(group.stretches(1).collect::<Vec<_>>(), [stretch(2, 0..65, 0..65)]);
        assert_eq!(group.stretches(2).count(), 0);
    }

    proptest! {
        #[test]
        fn shards_together_hold_every_element_once(
            lengths in prop::collection::vec(1usize..400, 1..6),
            num_shards in 1usize..9,
            bf16 in any::<bool>(),
        ) {
            let (layout, ids) = layout(&lengths);
            let dtype = if bf16 { DType::Bf16 } else { DType::F32 };
            let group = Group::new(&layout, &ids, dtype, num_shards);
            let mut seen: Vec<Vec<usize>> = lengths.iter().map(|&n| vec![0; n]).collect();
            for shard in 0..num_shards {
                for stretch in group.stretches(shard) {
                    prop_assert_eq!(stretch.of_param.len(), stretch.in_shard.len());
                    prop_assert!(stretch.in_shard.end <= group.shard_len);
                    prop_assert_eq!(stretch.of_param.start % (ALIGN_BYTES / dtype.size_bytes()), 0);
                    for i in stretch.of_param {
                        seen[stretch.param.0 as usize][i] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().flatten().all(|&times| times == 1));
        }
    }
}
