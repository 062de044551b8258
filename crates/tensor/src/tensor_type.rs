//! The tensor: a contiguous row-major view of a buffer.

use std::ops::Range;
use std::sync::Arc;

use crate::{Buffer, DType, Device, Error, Result, Shape};

/// A contiguous, row-major view of a device buffer.
///
/// Cloning shares the memory. Views exist only as ranges of the first dimension ([`Tensor::rows`]) and as other shapes of
/// the same elements ([`Tensor::reshape`]); there are no strides and no broadcasting, ops say exactly what they take.
#[derive(Debug, Clone)]
pub struct Tensor {
    buffer: Arc<dyn Buffer>,
    offset_bytes: usize,
    shape: Shape,
    dtype: DType,
}

impl Tensor {
    /// A tensor over a part of a buffer; for backends.
    ///
    /// Panics: if the elements do not lie inside the buffer.
    pub fn from_buffer(buffer: Arc<dyn Buffer>, offset_bytes: usize, shape: Shape, dtype: DType) -> Self {
        let end = offset_bytes + shape.num_elements() * dtype.size_bytes();
        assert!(end <= buffer.len_bytes(), "tensor of {end} bytes outside of a buffer of {}", buffer.len_bytes());
        Self { buffer, offset_bytes, shape, dtype }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Bytes of its elements.
    pub fn len_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size_bytes()
    }

    /// Where its memory is.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// The buffer it views; for backends.
    pub fn buffer(&self) -> &dyn Buffer {
        &*self.buffer
    }

    /// Where its elements begin in the buffer, in bytes; for backends.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Whether both tensors view the same buffer.
    pub fn shares_buffer(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.buffer), Arc::as_ptr(&other.buffer))
    }

    /// Whether no other tensor views this tensor's buffer.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    /// The rows `range` of the first dimension, sharing memory. `Error::View` if they do not exist.
    pub fn rows(&self, range: Range<usize>) -> Result<Self> {
        let dims = self.dims();
        let outside = || Error::View { start: range.start, end: range.end, shape: self.shape };
        let first = *dims.first().ok_or_else(outside)?;
        if range.start > range.end || range.end > first {
            return Err(outside());
        }
        let row_elements: usize = dims[1..].iter().product();
        let mut new_dims = [1; Shape::MAX_DIMS];
        new_dims[..dims.len()].copy_from_slice(dims);
        new_dims[0] = range.len();
        Ok(Self {
            buffer: Arc::clone(&self.buffer),
            offset_bytes: self.offset_bytes + range.start * row_elements * self.dtype.size_bytes(),
            shape: Shape::new(&new_dims[..dims.len()]),
            dtype: self.dtype,
        })
    }

    /// The same elements in another shape. `Error::Shape` if their number differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.num_elements() != self.num_elements() {
            let expected = format!("{} elements", shape.num_elements());
            return Err(Error::Shape { op: "reshape", name: "self", expected, found: self.shape });
        }
        Ok(Self { shape, ..self.clone() })
    }
}
