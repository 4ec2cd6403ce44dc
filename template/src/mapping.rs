//! The memory of this library.

use core::ptr::copy_nonoverlapping;

use linux_raw_sys::general::{
    MAP_ANONYMOUS, MAP_PRIVATE, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_EXEC, PROT_READ, PROT_WRITE,
};

use crate::call::{Errno, Sysno, syscall};

/// On other machines nothing here works, which does no harm.
const PAGE: usize = 4096;

/// The start of the library in memory, as ELF has it. Only what is used has a name.
#[repr(C)]
struct Header {
    before: [u64; 4],
    segments_at: u64,
    between: [u8; 14],
    segment_size: u16,
    segments: u16,
}

#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    at: u64,
    address: u64,
    physical: u64,
    size_in_file: u64,
    size: u64,
}

const LOAD: u32 = 1;
const MAY_EXECUTE: u32 = 1;
const MAY_WRITE: u32 = 2;

unsafe extern "C" {
    /// Made by the linker.
    static __ehdr_start: Header;
}

/// Replaces the library's memory by copies that belong to no file, so that no program finds the file among its mappings.
/// Parts that can't be replaced stay.
pub(crate) fn forget_file() {
    let header = &raw const __ehdr_start;
    // SAFETY: the dynamic linker has mapped the library as its header says, and the interpreter's only thread is here.
    unsafe {
        let count = usize::from((*header).segments);
        let size = usize::from((*header).segment_size);
        for number in 0..count {
            let at = header as usize + (*header).segments_at as usize + number * size;
            let segment = at as *const Segment;
            if (*segment).kind != LOAD {
                continue;
            }
            let first = header as usize + (*segment).address as usize;
            let end = (first + (*segment).size as usize).next_multiple_of(PAGE);
            let first = first / PAGE * PAGE;
            let mut rights = PROT_READ;
            for (flag, right) in [(MAY_EXECUTE, PROT_EXEC), (MAY_WRITE, PROT_WRITE)] {
                if (*segment).flags & flag != 0 {
                    rights |= right;
                }
            }
            let _ = replace(first, end - first, rights);
        }
    }
}

/// # Safety
///
/// The memory is there, can be read, and is not written by others meanwhile.
unsafe fn replace(first: usize, length: usize, rights: u32) -> Result<(), Errno> {
    let (write, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    // SAFETY: the copy is new memory; the move puts it in place at one stroke, while this very code runs in it.
    unsafe {
        let copy = syscall!(Sysno::mmap, 0, length, write, flags, usize::MAX, 0)?;
        copy_nonoverlapping(first as *const u8, copy as *mut u8, length);
        syscall!(Sysno::mprotect, copy, length, rights)?;
        flush(copy, length);
        syscall!(Sysno::mremap, copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, first)?;
        flush(first, length);
    }
    Ok(())
}

/// Overwrites the start of a function.
///
/// # Safety
///
/// No other thread is in it, and it is as long.
pub(crate) unsafe fn write_code<const N: usize>(
    function: *mut [u8; N],
    code: [u8; N],
) -> Result<(), Errno> {
    let first = function as usize / PAGE * PAGE;
    let length = function as usize + N - first;
    // SAFETY: the caller's. Another thread of the program may be in this page, so it can be executed all the time.
    unsafe {
        syscall!(Sysno::mprotect, first, length, PROT_READ | PROT_WRITE | PROT_EXEC)?;
        function.write_unaligned(code);
        syscall!(Sysno::mprotect, first, length, PROT_READ | PROT_EXEC)?;
    }
    flush(function as usize, N);
    Ok(())
}

/// Makes the processor see instructions that were written.
fn flush(first: usize, length: usize) {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the memory is there, and only the caches change.
    unsafe {
        // No processor has shorter lines.
        for line in (first..first + length).step_by(16) {
            core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) line);
        }
        core::arch::asm!("dsb ish", "isb");
    }
    #[cfg(not(target_arch = "aarch64"))]
    let _ = (first, length);
}
