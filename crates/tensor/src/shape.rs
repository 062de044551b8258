//! Shapes of at most four dimensions.

use std::fmt;

/// Dimensions of a contiguous row-major tensor, outermost first; at most [`Shape::MAX_DIMS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Self::MAX_DIMS],
    num_dims: u8,
}

impl Shape {
    /// The most dimensions a tensor has.
    pub const MAX_DIMS: usize = 4;

    /// A shape of the given dimensions. Panics: if there are more than [`Shape::MAX_DIMS`].
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= Self::MAX_DIMS, "a shape has at most {} dimensions", Self::MAX_DIMS);
        let mut all = [1; Self::MAX_DIMS];
        all[..dims.len()].copy_from_slice(dims);
        Self { dims: all, num_dims: dims.len() as u8 }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..usize::from(self.num_dims)]
    }

    /// Number of elements: the product of the dimensions (1 for a scalar).
    pub fn num_elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Rows and columns when all but the last dimension are taken together; a vector is one row.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.dims() {
            [] => (1, 1),
            [outer @ .., last] => (outer.iter().product(), *last),
        }
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, dim) in self.dims().iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
