//! How the parameters of a unit share one flat buffer, and how ranks share the buffer.

use std::ops::Range;

use tensor::ops::nf4::packed_bytes;
use tensor::{ModelLayout, ParamId};

/// Parameters and shards begin at multiples of this many elements, which suits every cache line and vector register, and the blocks
/// of optimizer states that have one entry for several elements.
pub(crate) const ALIGN: usize = 256;

/// Parameters of one unit, side by side in a flat buffer that is cut into shards of equal length.
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
    /// Its slot in the group.
    pub(crate) slot: usize,
    /// Which of its elements.
    pub(crate) of_param: Range<usize>,
    /// Where they lie in the shard.
    pub(crate) in_shard: Range<usize>,
}

impl Group {
    /// Lays out the given parameters in order, for `num_shards` shards.
    pub(crate) fn new(layout: &ModelLayout, params: &[ParamId], num_shards: usize) -> Self {
        Self::of_sizes(params.iter().map(|&id| (id, layout.param(id).shape.num_elements())), num_shards)
    }

    /// Lays out parameters that are packed into bytes. Shards of them are pieces of bytes, and mean something together only.
    pub(crate) fn packed(layout: &ModelLayout, params: &[ParamId], num_shards: usize) -> Self {
        let bytes = |&id: &ParamId| (id, packed_bytes(layout.param(id).shape.num_elements()));
        Self::of_sizes(params.iter().map(bytes), num_shards)
    }

    fn of_sizes(sizes: impl Iterator<Item = (ParamId, usize)>, num_shards: usize) -> Self {
        let mut len = 0usize;
        let slots = sizes
            .map(|(id, size)| {
                let start = len;
                let end = start + size;
                len = end.next_multiple_of(ALIGN);
                (id, start..end)
            })
            .collect();
        let shard_len = len.div_ceil(num_shards).next_multiple_of(ALIGN);
        Self { slots, len: shard_len * num_shards, shard_len }
    }

    /// The stretches that belong to no parameter.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.slots.iter().skip(1).map(|(_, range)| range.start).chain([self.len]);
        self.slots.iter().zip(ends).map(|((_, range), next)| range.end..next).filter(|gap| !gap.is_empty())
    }

    /// What a shard holds of the group's parameters, in order.
    pub(crate) fn stretches(&self, shard: usize) -> impl Iterator<Item = Stretch> + '_ {
        self.slots.iter().enumerate().filter_map(move |(slot, (param, in_group))| {
            let in_shard = self.in_shard(shard, in_group);
            // Where the shard begins, counted from the parameter's first element.
            let before = (shard * self.shard_len).saturating_sub(in_group.start);
            let of_param = before..before + in_shard.len();
            (!in_shard.is_empty()).then_some(Stretch { param: *param, slot, of_param, in_shard })
        })
    }

    /// Which elements of a shard belong to a range of the group.
    pub(crate) fn in_shard(&self, shard: usize, range: &Range<usize>) -> Range<usize> {
        let first = shard * self.shard_len;
        let within = |at: usize| at.clamp(first, first + self.shard_len) - first;
        within(range.start)..within(range.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensor::{Init, ParamKind, ParamSpec, Shape};

    use super::*;

    fn layout(lengths: &[usize]) -> (ModelLayout, Vec<ParamId>) {
        let spec = |&n: &usize| ParamSpec {
            name: n.to_string(),
            shape: Shape::from([n]),
            meaning: "(n)",
            init: Init::Ones,
            kind: ParamKind::Trained,
            fake_quant: None,
        };
        let ids = (0..lengths.len()).map(|id| ParamId(id as u32)).collect();
        (ModelLayout { params: lengths.iter().map(spec).collect(), ..ModelLayout::default() }, ids)
    }

    #[test]
    fn parameters_are_aligned_and_gaps_are_what_is_left() {
        let (layout, ids) = layout(&[3, 256, 257]);
        let group = Group::new(&layout, &ids, 1);
        assert_eq!(group.slots.iter().map(|(_, r)| r.clone()).collect::<Vec<_>>(), [0..3, 256..512, 512..769]);
        assert_eq!((group.len, group.shard_len), (1024, 1024));
        assert_eq!(group.gaps().collect::<Vec<_>>(), [3..256, 769..1024]);
    }

    #[test]
    fn borders_of_shards_are_aligned_too() {
        let (layout, ids) = layout(&[3, 256, 257]);
        let group = Group::new(&layout, &ids, 3);
        assert_eq!((group.len, group.shard_len), (1536, 512));
        let stretch = |slot, of_param, in_shard| Stretch { param: ParamId(slot as u32), slot, of_param, in_shard };
        assert_eq!(group.stretches(0).collect::<Vec<_>>(), [stretch(0, 0..3, 0..3), stretch(1, 0..256, 256..512)]);
        assert_eq!(group.stretches(1).collect::<Vec<_>>(), [stretch(2, 0..257, 0..257)]);
        assert_eq!(group.stretches(2).count(), 0);
    }

    proptest! {
        #[test]
        fn shards_together_hold_every_element_once(
            lengths in prop::collection::vec(1usize..1500, 1..6),
            num_shards in 1usize..9,
        ) {
            let (layout, ids) = layout(&lengths);
            let group = Group::new(&layout, &ids, num_shards);
            let mut seen: Vec<Vec<usize>> = lengths.iter().map(|&n| vec![0; n]).collect();
            for shard in 0..num_shards {
                for stretch in group.stretches(shard) {
                    prop_assert_eq!(stretch.of_param.len(), stretch.in_shard.len());
                    prop_assert!(stretch.in_shard.end <= group.shard_len);
                    prop_assert_eq!((stretch.of_param.start % ALIGN, stretch.in_shard.start % ALIGN), (0, 0));
                    for i in stretch.of_param {
                        seen[stretch.param.0 as usize][i] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().flatten().all(|&times| times == 1));
        }
    }
}
