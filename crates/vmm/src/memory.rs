//! Guest RAM: one private mapping, aligned for huge pages, that fork(2) shares copy-on-write.
//!
//! The mapping is anonymous for a booted machine and a private map of the memory file for a restored
//! one. Guest physical memory has a hole for devices below 4 GiB, the mapping has none:
//!
//! ```text
//! guest:    0 ......... 3 GiB | devices | 4 GiB .........
//! mapping:  0 ......... 3 GiB | 3 GiB .........
//! ```
//!
//! Nobody outside this module turns a guest address into a pointer; others use vm-memory's checked
//! accesses. The mapping is never unmapped: it lives as long as the process.
#![expect(unsafe_code, reason = "mapping memory, and telling KVM and vm-memory where it is")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;

use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Size of a page.
pub const PAGE: usize = 4096;
/// Size of a huge page; RAM is aligned to it.
pub const HUGE_PAGE: usize = 2 << 20;
/// First guest address that is not RAM.
pub const HOLE_START: u64 = 3 << 30;
/// First guest address that is RAM again.
pub const HOLE_END: u64 = 4 << 30;

/// RAM as vm-memory sees it.
pub type Guest = GuestMemoryMmap<()>;

/// Guest RAM.
#[derive(Clone)]
pub struct Ram {
    guest: Guest,
    base: usize,
    size: usize,
    /// The memory file behind a restored machine, for its holes.
    file: Option<std::sync::Arc<File>>,
}

/// A contiguous part of RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Guest address.
    pub gpa: u64,
    /// Address in this process.
    pub hva: usize,
    /// Length.
    pub size: usize,
}

impl Ram {
    /// Fresh memory, all zero.
    pub fn anonymous(size: usize, huge_pages: bool) -> io::Result<Self> {
        let base = map(size, None)?;
        let advice = if huge_pages { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        advise(base, size, advice)?;
        Self::new(base, size, None)
    }

    /// The content of `file`, which is `size` long and stays as it is.
    pub fn private_of(file: File, size: usize) -> io::Result<Self> {
        let base = map(size, Some(&file))?;
        Self::new(base, size, Some(std::sync::Arc::new(file)))
    }

    /// Memory that gets the content of `file`, page by page, from a [`crate::pager`].
    pub fn awaited(file: File, size: usize) -> io::Result<Self> {
        let base = map(size, None)?;
        advise(base, size, libc::MADV_NOHUGEPAGE)?;
        Self::new(base, size, Some(std::sync::Arc::new(file)))
    }

    /// Lets a range that nothing was put into show the memory file from now on.
    pub fn show_file(&self, offset: usize, length: usize) -> io::Result<()> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.size));
        let Some(file) = &self.file else { return Err(io::ErrorKind::InvalidInput.into()) };
        // SAFETY: the range is inside our own mapping, as asserted, and takes its place with the same rights.
        let mapped = unsafe {
            libc::mmap(
                (self.base + offset) as *mut libc::c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED,
                file.as_raw_fd(),
                libc::off_t::try_from(offset).map_err(io::Error::other)?,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        advise(self.base + offset, length, libc::MADV_DONTDUMP)
    }

    fn new(base: usize, size: usize, file: Option<std::sync::Arc<File>>) -> io::Result<Self> {
        advise(base, size, libc::MADV_DONTDUMP)?;
        let regions = parts(base, size)
            .into_iter()
            .map(|part| {
                // SAFETY: the range was mapped by `map` with these flags and is never unmapped.
                let region = unsafe {
                    MmapRegion::build_raw(
                        part.hva as *mut u8,
                        part.size,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_NORESERVE,
                    )
                };
                let region = region.map_err(io::Error::other)?;
                GuestRegionMmap::new(region, GuestAddress(part.gpa))
                    .ok_or_else(|| io::Error::other("memory wraps around"))
            })
            .collect::<io::Result<Vec<_>>>()?;
        let guest = Guest::from_regions(regions).map_err(io::Error::other)?;
        Ok(Self { guest, base, size, file })
    }

    /// For checked accesses by guest address.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The parts, for KVM's memory slots.
    pub fn parts(&self) -> Vec<Part> {
        parts(self.base, self.size)
    }

    /// Address of the mapping in this process.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The memory file, if RAM is a private map of one.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Writes `length` bytes at `offset` of the mapping to the same place of `out`.
    ///
    /// The kernel reads the memory, so no reference to guest memory is made.
    pub fn write_range(&self, out: &File, offset: usize, length: usize) -> io::Result<()> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.size));
        let (mut at, end) = (offset, offset + length);
        while at < end {
            // SAFETY: [at, end) is inside the mapping, as asserted; pwrite only reads it.
            let written = unsafe {
                libc::pwrite(
                    out.as_raw_fd(),
                    (self.base + at) as *const libc::c_void,
                    end - at,
                    libc::off_t::try_from(at).map_err(io::Error::other)?,
                )
            };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => at += written,
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies `buffer.len()` bytes at `offset` of the mapping.
    pub fn copy_out(&self, offset: usize, buffer: &mut [u8]) {
        assert!(offset.checked_add(buffer.len()).is_some_and(|end| end <= self.size));
        // SAFETY: the source range is inside the mapping, as asserted; the destination is ours.
        // Nothing writes the source meanwhile: this is only called while the guest is stopped.
        unsafe {
            ptr::copy_nonoverlapping(
                (self.base + offset) as *const u8,
                buffer.as_mut_ptr(),
                buffer.len(),
            );
        }
    }

    /// Which pages exist: `true` where the page was ever touched in this mapping or its ancestors.
    pub fn present(&self, offset: usize, pages: usize) -> io::Result<Vec<bool>> {
        let pagemap = File::open("/proc/self/pagemap")?;
        let mut entries = vec![0u8; pages * 8];
        pagemap.read_exact_at(&mut entries, ((self.base + offset) / PAGE * 8) as u64)?;
        Ok(entries
            .chunks_exact(8)
            .map(|entry| entry[7] & 0xc0 != 0) // present or swapped
            .collect())
    }

    /// Gives the memory back; the guest is over.
    pub fn discard(&self) {
        // An error leaves the memory where it is until the process ends.
        let _unreleased = advise(self.base, self.size, libc::MADV_DONTNEED);
    }
}

fn parts(base: usize, size: usize) -> Vec<Part> {
    let low = size.min(usize::try_from(HOLE_START).expect("64-bit"));
    let mut parts = vec![Part { gpa: 0, hva: base, size: low }];
    if size > low {
        parts.push(Part { gpa: HOLE_END, hva: base + low, size: size - low });
    }
    parts
}

/// Reserves an aligned range and maps memory or `file` over it.
fn map(size: usize, file: Option<&File>) -> io::Result<usize> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
    let reserved =
        unsafe { libc::mmap(ptr::null_mut(), size + HUGE_PAGE, libc::PROT_NONE, anonymous, -1, 0) };
    if reserved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = (reserved as usize).next_multiple_of(HUGE_PAGE);
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_PRIVATE | libc::MAP_NORESERVE, file.as_raw_fd()),
        None => (anonymous, -1),
    };
    // SAFETY: [base, base + size) lies inside the range reserved above, so MAP_FIXED replaces only
    // that reservation.
    let mapped = unsafe {
        libc::mmap(
            base as *mut libc::c_void,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | libc::MAP_FIXED,
            fd,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base)
}

fn advise(base: usize, size: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the range is our own mapping; none of the advices used here breaks the content that
    // anybody still looks at (DONTNEED only comes when the guest is over).
    let result = unsafe { libc::madvise(base as *mut libc::c_void, size, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
