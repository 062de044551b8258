//! Host memory as tensors hold it, and the borrows that ops take on it.
//!
//! A buffer counts its readers and its writer, as a `RefCell` does, but across threads: an op borrows its inputs for reading
//! and its outputs for writing for as long as it runs. Two borrows that conflict are a bug in the caller and panic, so no
//! sharing of tensors can become a data race.
#![expect(unsafe_code, reason = "hands out slices of raw memory under a borrow count")]

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

use tensor::{Buffer, Device, DeviceKind, Error, Result, Tensor};

use crate::pool::Pool;
use crate::region::Region;

/// The one device of this crate.
pub(crate) const DEVICE: Device = Device { kind: DeviceKind::Cpu, index: 0 };

/// Borrow count while an op writes; otherwise it is the number of readers.
const WRITING: i32 = -1;

/// A region of a pool, given back to it on drop; or a region in a file, which no pool keeps.
pub(crate) struct HostBuffer {
    /// Present until drop.
    region: Option<Region>,
    len_bytes: usize,
    borrows: AtomicI32,
    is_in_file: bool,
    pool: Pool,
}

impl HostBuffer {
    /// A buffer of `len_bytes` with any contents; `Error::OutOfMemory` if the system has no memory left.
    pub(crate) fn new(pool: &Pool, len_bytes: usize) -> Result<Self> {
        let region = pool.take(len_bytes).ok_or(Error::OutOfMemory { device: DEVICE, bytes: len_bytes })?;
        Ok(Self { region: Some(region), len_bytes, borrows: AtomicI32::new(0), is_in_file: false, pool: pool.clone() })
    }

    /// A buffer of `len_bytes` zeros in a file in `dir`; `Error::Host` if there is no room for it.
    pub(crate) fn in_file(pool: &Pool, len_bytes: usize, dir: &Path) -> Result<Self> {
        let region = pool.take_in_file(len_bytes, dir).map_err(|error| Error::Host {
            reason: format!("cannot keep {len_bytes} bytes in a file in `{}`: {error}", dir.display()),
        })?;
        Ok(Self { region: Some(region), len_bytes, borrows: AtomicI32::new(0), is_in_file: true, pool: pool.clone() })
    }

    /// The buffer of a tensor; `Error::WrongDevice` if it is not in host memory.
    fn of(tensor: &Tensor) -> Result<&Self> {
        let wrong = || Error::WrongDevice { expected: DEVICE, found: tensor.device() };
        tensor.buffer().as_any().downcast_ref().ok_or_else(wrong)
    }

    fn start(&self) -> *mut u8 {
        self.region.as_ref().expect("the region is there until drop").start().as_ptr()
    }

    fn borrow_for_reading(&self) {
        let step = |borrows: i32| (borrows >= 0).then(|| borrows + 1);
        let result = self.borrows.fetch_update(Ordering::Acquire, Ordering::Relaxed, step);
        assert!(result.is_ok(), "an op reads a tensor whose buffer another tensor of a running op writes");
    }

    fn borrow_for_writing(&self) {
        let result = self.borrows.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed);
        assert!(result.is_ok(), "an op writes a tensor whose buffer another tensor of a running op uses");
    }

    fn end_reading(&self) {
        self.borrows.fetch_sub(1, Ordering::Release);
    }

    fn end_writing(&self) {
        self.borrows.store(0, Ordering::Release);
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        match self.region.take() {
            Some(region) if self.is_in_file => self.pool.drop_in_file(region),
            Some(region) => self.pool.give_back(region),
            None => {}
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let borrows = self.borrows.load(Ordering::Relaxed);
        f.debug_struct("HostBuffer")
            .field("len_bytes", &self.len_bytes)
            .field("borrows", &borrows)
            .finish_non_exhaustive()
    }
}

impl Buffer for HostBuffer {
    fn device(&self) -> Device {
        DEVICE
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The elements that a tensor views: pointer to the first and their number. Panics: if `T` has another size.
fn elements<T: bytemuck::Pod>(buffer: &HostBuffer, tensor: &Tensor) -> (*mut T, usize) {
    assert!(size_of::<T>() == tensor.dtype().size_bytes() || size_of::<T>() == 1, "elements of another size");
    let (offset, len_bytes) = (tensor.offset_bytes(), tensor.len_bytes());
    assert!(offset + len_bytes <= buffer.len_bytes, "a tensor lies inside of its buffer");
    // SAFETY: the offset lies inside of the region.
    let start = unsafe { buffer.start().add(offset) }.cast::<T>();
    assert!(start.is_aligned(), "offsets are multiples of the element size");
    (start, len_bytes / size_of::<T>())
}

/// The elements of a tensor, borrowed for reading.
pub(crate) struct Read<'a, T> {
    slice: &'a [T],
    buffer: &'a HostBuffer,
}

impl<'a, T: bytemuck::Pod> Read<'a, T> {
    /// `T` is the type that the tensor's dtype stands for, or `u8` for its bytes.
    /// Panics: if a running op writes the buffer.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Self> {
        let buffer = HostBuffer::of(tensor)?;
        let (start, len) = elements(buffer, tensor);
        buffer.borrow_for_reading();
        // SAFETY: `elements` checked bounds and alignment; regions are initialised and any bits are a value of a `Pod` type;
        // while readers are counted, no writer is admitted.
        let slice = unsafe { std::slice::from_raw_parts(start, len) };
        Ok(Self { slice, buffer })
    }
}

impl<T> Deref for Read<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T> Drop for Read<'_, T> {
    fn drop(&mut self) {
        self.buffer.end_reading();
    }
}

/// The elements of a tensor, borrowed for writing.
pub(crate) struct Write<'a, T> {
    slice: &'a mut [T],
    buffer: &'a HostBuffer,
}

impl<'a, T: bytemuck::Pod> Write<'a, T> {
    /// `T` is the type that the tensor's dtype stands for, or `u8` for its bytes.
    /// Panics: if a running op uses the buffer.
    pub(crate) fn of(tensor: &'a mut Tensor) -> Result<Self> {
        let tensor = &*tensor;
        let buffer = HostBuffer::of(tensor)?;
        let (start, len) = elements(buffer, tensor);
        buffer.borrow_for_writing();
        // SAFETY: as for reading; the count admits a writer only alone.
        let slice = unsafe { std::slice::from_raw_parts_mut(start, len) };
        Ok(Self { slice, buffer })
    }
}

impl<T> Deref for Write<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T> DerefMut for Write<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice
    }
}

impl<T> Drop for Write<'_, T> {
    fn drop(&mut self) {
        self.buffer.end_writing();
    }
}

/// Numbers that workers share during one op, in memory of the pool.
pub(crate) struct Temp {
    /// Present until drop.
    region: Option<Region>,
    len: usize,
    pool: Pool,
}

impl Temp {
    /// `len` numbers with any contents; `Error::OutOfMemory` if the system has no memory left.
    pub(crate) fn new(pool: &Pool, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<f32>());
        let region = pool.take(bytes).ok_or(Error::OutOfMemory { device: DEVICE, bytes })?;
        Ok(Self { region: Some(region), len, pool: pool.clone() })
    }
}

impl Deref for Temp {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let bytes = self.region.as_ref().expect("the region is there until drop").bytes();
        bytemuck::cast_slice(&bytes[..self.len * size_of::<f32>()])
    }
}

impl DerefMut for Temp {
    fn deref_mut(&mut self) -> &mut [f32] {
        let bytes = self.region.as_mut().expect("the region is there until drop").bytes_mut();
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<f32>()])
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            self.pool.give_back(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensor::{DType, Shape};

    use super::*;

    fn tensor(len: usize) -> Tensor {
        let buffer = HostBuffer::new(&Pool::default(), len * 4).unwrap();
        Tensor::from_buffer(Arc::new(buffer), 0, Shape::new(&[len]), DType::F32)
    }

    #[test]
    fn many_may_read_and_then_one_may_write() {
        let mut t = tensor(8);
        let half = t.rows(0..4).unwrap();
        {
            let (a, b) = (Read::<f32>::of(&t).unwrap(), Read::<f32>::of(&half).unwrap());
            assert_eq!((a.len(), b.len()), (8, 4));
        }
        Write::<f32>::of(&mut t).unwrap()[3] = 2.0;
        assert_eq!(Read::<f32>::of(&half).unwrap()[3], 2.0);
    }

    #[test]
    #[should_panic(expected = "an op reads a tensor whose buffer another tensor of a running op writes")]
    fn reading_what_is_written_panics() {
        let mut t = tensor(8);
        let other = t.clone();
        let _writing = Write::<f32>::of(&mut t).unwrap();
        let _ = Read::<f32>::of(&other);
    }

    #[test]
    #[should_panic(expected = "an op writes a tensor whose buffer another tensor of a running op uses")]
    fn writing_what_is_read_panics() {
        let t = tensor(8);
        let mut other = t.rows(4..8).unwrap();
        let _reading = Read::<f32>::of(&t).unwrap();
        let _ = Write::<f32>::of(&mut other);
    }

    #[test]
    fn dropped_buffers_return_to_their_pool() {
        let pool = Pool::default();
        let buffer = HostBuffer::new(&pool, 100).unwrap();
        assert_eq!(pool.stats().live_bytes, 104);
        drop(buffer);
        assert_eq!((pool.stats().live_bytes, pool.stats().cached_bytes), (0, 104));
    }
}
