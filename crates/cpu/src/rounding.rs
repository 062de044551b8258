//! How kernels round the weights that they store: to nearest, or by chance.
//!
//! Numbers: as [`tensor::ops::rounding`]; the bits of an element depend on its place alone, so not on how threads share the work.

use tensor::DType;
use tensor::ops::rounding::{Rounding, StretchBits};

use crate::isa::per_isa;
use crate::numbers::Element;

/// A way to round; a type, so that a loop is compiled for each.
pub(crate) trait Round: Copy + Send + Sync {
    /// `x`, the value of the element at place `index` of the slice that is stored.
    fn round<T: Element>(self, x: f32, index: u32) -> T;
}

/// To nearest, ties to even.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToNearest;

impl Round for ToNearest {
    #[inline(always)]
    fn round<T: Element>(self, x: f32, _: u32) -> T {
        T::from_f32(x)
    }
}

impl Round for StretchBits {
    #[inline(always)]
    fn round<T: Element>(self, x: f32, index: u32) -> T {
        T::from_f32_by_chance(x, self.at(index))
    }
}

/// How weights of `dtype` are rounded: f32 takes every value as it is.
pub(crate) fn of_dtype(rounding: Rounding, dtype: DType) -> Rounding {
    if dtype == DType::F32 { Rounding::Nearest } else { rounding }
}

per_isa! {
    /// `dst = src`, rounded.
    pub(crate) fn store_rounded<const FMA: bool, T: Element, R: Round>(dst: &mut [T], src: &[f32], round: R) {
        for (index, (dst, &src)) in (0u32..).zip(dst.iter_mut().zip(src)) {
            *dst = round.round(src, index);
        }
    }
}
