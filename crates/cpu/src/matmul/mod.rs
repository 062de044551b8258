//! Matrix products in the three layouts that a linear layer needs.
//!
//! `c = a b` is cut into tasks of some rows and columns (`tasks.rs`). The left factor is brought into order once, by all
//! workers; each task packs its own columns of the right factor, so that they stay in its core's cache while the left factor
//! streams past. Long sums go in blocks that are added up in f32. There are two ways to compute a task:
//!
//! ```text
//! wide.rs    factors as f32: bf16 is widened, rows of f32 are read where they lie
//! paired.rs  factors of bf16 as they are, two terms at once, where the processor multiplies pairs
//! ```
//!
//! Products with few tokens read the weight as the left factor, where it lies (`few_tokens.rs`).
//!
//! Numbers: storage f32 or bf16, sums in f32, rounded once.

mod few_tokens;
mod paired;
mod tasks;
#[cfg(test)]
mod tests;
mod wide;

use half::bf16;
use tensor::ops::matmul::{MatmulDims, check_nn, check_nt, check_tn};
use tensor::{DType, Result, Tensor};

use crate::CpuBackend;
use crate::buffer::{Read, Write};
use crate::crew::Disjoint;
use crate::isa::Isa;
use crate::numbers::{Element, with_element};

pub(crate) use few_tokens::{FEW_TOKENS, shared_len as few_tokens_shared_len};

/// `y (+)= x w^T`.
pub(crate) fn nt(backend: &CpuBackend, y: &mut Tensor, x: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
    let MatmulDims { m, n, k } = check_nt(y, x, w)?;
    with_element!(x.dtype(), T => with_element!(y.dtype(), O => {
        let (x, w) = (Read::<T>::of(x)?, Read::<T>::of(w)?);
        let mut y = Write::<O>::of(y)?;
        if m <= FEW_TOKENS {
            return few_tokens::few_tokens(backend, &mut y, &x, &w, (m, n, k), accumulate);
        }
        let product = Product { m, n, k, a: Factor::Plain(&x), b: Factor::Transposed(&w) };
        product.run(backend, &mut y, accumulate)
    }))
}

/// `dx (+)= dy w`.
pub(crate) fn nn(backend: &CpuBackend, dx: &mut Tensor, dy: &Tensor, w: &Tensor, accumulate: bool) -> Result<()> {
    let MatmulDims { m, n, k } = check_nn(dx, dy, w)?;
    with_element!(dy.dtype(), T => {
        let (dy, w) = (Read::<T>::of(dy)?, Read::<T>::of(w)?);
        let mut dx = Write::<T>::of(dx)?;
        let product = Product { m, n: k, k: n, a: Factor::Plain(&dy), b: Factor::Plain(&w) };
        product.run(backend, &mut dx, accumulate)
    })
}

/// `dw (+)= dy^T x`.
pub(crate) fn tn(backend: &CpuBackend, dw: &mut Tensor, dy: &Tensor, x: &Tensor, accumulate: bool) -> Result<()> {
    let MatmulDims { m, n, k } = check_tn(dw, dy, x)?;
    with_element!(dy.dtype(), T => with_element!(dw.dtype(), O => {
        let (dy, x) = (Read::<T>::of(dy)?, Read::<T>::of(x)?);
        let mut dw = Write::<O>::of(dw)?;
        let product = Product { m: n, n: k, k: m, a: Factor::Transposed(&dy), b: Factor::Plain(&x) };
        product.run(backend, &mut dw, accumulate)
    }))
}

/// A factor as it lies in memory: its own rows, or its columns as rows.
#[derive(Clone, Copy)]
enum Factor<'a, T> {
    Plain(&'a [T]),
    Transposed(&'a [T]),
}

impl<'a, T: Element> Factor<'a, T> {
    fn as_bf16(self) -> Option<Factor<'a, bf16>> {
        match self {
            Self::Plain(rows) => T::as_bf16(rows).map(Factor::Plain),
            Self::Transposed(rows) => T::as_bf16(rows).map(Factor::Transposed),
        }
    }
}

/// `c = a b` with a: (m, k), b: (k, n).
struct Product<'a, T> {
    m: usize,
    n: usize,
    k: usize,
    a: Factor<'a, T>,
    b: Factor<'a, T>,
}

impl<T: Element> Product<'_, T> {
    fn run<O: Element>(&self, backend: &CpuBackend, c: &mut [O], accumulate: bool) -> Result<()> {
        let &Self { m, n, k, .. } = self;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let c = Disjoint::new(c);
        if backend.isa.multiplies_pairs()
            && let (Some(a), Some(b)) = (self.a.as_bf16(), self.b.as_bf16())
        {
            return paired::run(&Product { m, n, k, a, b }, backend, &c, accumulate);
        }
        wide::run(self, backend, &c, accumulate)
    }
}

/// Elements of f32 size that all workers share while a product is taken whose left factor has `m` rows of `k` terms;
/// `is_plain` says that it lies in memory as rows.
pub(crate) fn shared_len(isa: Isa, dtype: DType, (m, k): (usize, usize), is_plain: bool) -> usize {
    match dtype {
        DType::F32 if is_plain => 0,
        DType::Bf16 if isa.multiplies_pairs() => paired::rows_at_once(m, k) * paired::row_len(k),
        _ => wide::rows_at_once(m, k) * k,
    }
}
