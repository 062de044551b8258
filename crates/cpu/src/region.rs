//! Memory taken from the system: aligned, initialised, given back on drop.
//!
//! Small regions come from the allocator, large ones from the kernel in whole huge pages where the system has them, so that
//! passes over big tensors miss the address cache less. A region may lie in a file instead: then the kernel brings its pages
//! when they are used and writes them back when memory is short, so it may be larger than memory.
#![expect(unsafe_code, reason = "owns raw memory")]

use std::alloc::Layout;
use std::ptr::NonNull;

/// Alignment of every region: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// From this size on regions are mapped.
#[cfg(unix)]
const MAP_FROM_BYTES: usize = 1 << 20;

/// The size of a huge page on the systems that have them.
#[cfg(unix)]
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Debug)]
enum Source {
    /// None: the region only has a size.
    Planned,
    Allocator(Layout),
    #[cfg(unix)]
    Mapped {
        base: NonNull<libc::c_void>,
        len_bytes: usize,
    },
}

/// What dangling pointers are aligned like.
#[repr(align(64))]
struct Line;

/// A run of initialised bytes, zero at first.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    len_bytes: usize,
    source: Source,
}

// SAFETY: a region owns its memory, like a `Box<[u8]>`; all access goes through borrows of it.
unsafe impl Send for Region {}
// SAFETY: as above; shared access does not mutate.
unsafe impl Sync for Region {}

impl Region {
    /// `len_bytes` zeros, or `None` if the system has no memory left. Panics: if `len_bytes` is 0.
    pub(crate) fn new(len_bytes: usize) -> Option<Self> {
        assert!(len_bytes > 0, "a region has at least one byte");
        #[cfg(unix)]
        if len_bytes >= MAP_FROM_BYTES && cfg!(not(miri)) {
            return Self::map(len_bytes);
        }
        let layout = Layout::from_size_align(len_bytes, ALIGN).ok()?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Self { start, len_bytes, source: Source::Allocator(layout) })
    }

    /// `len_bytes` zeros in a file without a name in `dir`, which is gone when the region is, or when the process is. Its space is
    /// taken at once, so that a full disk shows here.
    #[cfg(unix)]
    pub(crate) fn in_file(dir: &std::path::Path, len_bytes: usize) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        assert!(len_bytes > 0, "a region has at least one byte");
        let file = tempfile::tempfile_in(dir)?;
        let len = libc::off_t::try_from(len_bytes).map_err(|_| std::io::ErrorKind::FileTooLarge)?;
        // SAFETY: the descriptor is open for as long as `file` lives.
        let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) };
        if code != 0 {
            return Err(std::io::Error::from_raw_os_error(code));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping touches no memory of this process. Nobody else can open the file, so nothing shortens it.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = NonNull::new(base).expect("a mapping never begins at address 0");
        Ok(Self { start: base.cast(), len_bytes, source: Source::Mapped { base, len_bytes } })
    }

    /// Files cannot be mapped here.
    #[cfg(not(unix))]
    pub(crate) fn in_file(_: &std::path::Path, _: usize) -> std::io::Result<Self> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// A region that is counted but holds nothing: its bytes must not be asked for.
    pub(crate) fn planned(len_bytes: usize) -> Self {
        Self { start: NonNull::<Line>::dangling().cast(), len_bytes, source: Source::Planned }
    }

    #[cfg(unix)]
    fn map(len_bytes: usize) -> Option<Self> {
        // Room to begin at a huge page's border.
        let slack = if len_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = len_bytes.checked_add(slack)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping touches no memory of this process.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = NonNull::new(base)?;
        let offset = if slack == 0 { 0 } else { base.as_ptr().align_offset(HUGE_PAGE_BYTES).min(slack) };
        // SAFETY: offset <= slack, so the region lies inside of the mapping.
        let start = unsafe { base.cast::<u8>().add(offset) };
        #[cfg(target_os = "linux")]
        if slack > 0 {
            // SAFETY: the range lies inside of the mapping made above. Advice that is not taken changes nothing.
            unsafe { libc::madvise(start.as_ptr().cast(), len_bytes, libc::MADV_HUGEPAGE) };
        }
        Some(Self { start, len_bytes, source: Source::Mapped { base, len_bytes: mapped_bytes } })
    }

    /// Size in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where it begins, aligned to [`ALIGN`]; valid for reads and writes of [`Region::len_bytes`] initialised bytes.
    /// Panics: if the region is only planned.
    pub(crate) fn start(&self) -> NonNull<u8> {
        assert!(!self.is_planned(), "a planned region has no bytes");
        self.start
    }

    /// Whether it only has a size.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(self.source, Source::Planned)
    }

    /// All bytes. Panics: if the region is only planned.
    pub(crate) fn bytes(&self) -> &[u8] {
        let start = self.start();
        // SAFETY: the region owns these bytes, they are initialised, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len_bytes) }
    }

    /// All bytes. Panics: if the region is only planned.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.start();
        // SAFETY: the region owns these bytes, they are initialised, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.source {
            Source::Planned => {}
            // SAFETY: allocated by `new` with this layout.
            Source::Allocator(layout) => unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) },
            #[cfg(unix)]
            Source::Mapped { base, len_bytes } => {
                // SAFETY: mapped by `map` with this base and size.
                unsafe { libc::munmap(base.as_ptr(), len_bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeros_of_the_asked_size() {
        for len_bytes in [1, 64, 4096, (1 << 20) + 1, 3 << 20] {
            let mut region = Region::new(len_bytes).unwrap();
            assert_eq!(region.start().as_ptr() as usize % ALIGN, 0);
            assert_eq!(region.bytes_mut().len(), len_bytes);
            assert!(region.bytes_mut().iter().all(|&b| b == 0));
            region.bytes_mut().fill(1);
        }
    }

    #[test]
    #[should_panic(expected = "a planned region has no bytes")]
    fn planned_regions_have_a_size_only() {
        let region = Region::planned(1 << 50);
        assert_eq!(region.len_bytes(), 1 << 50);
        let _ = region.bytes();
    }

    #[cfg(unix)]
    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_region_in_a_file_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut region = Region::in_file(dir.path(), 5 << 20).unwrap();
        assert!(region.bytes().iter().all(|&b| b == 0));
        region.bytes_mut().fill(7);
        assert!(region.bytes().iter().all(|&b| b == 7));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Region::in_file(&dir.path().join("absent"), 8).is_err());
        assert!(Region::in_file(dir.path(), 1 << 60).is_err());
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        assert!(Region::new(1 << 60).is_none());
        assert!(Region::new(usize::MAX - 100).is_none());
    }
}
