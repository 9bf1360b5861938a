//! The table of the driver's functions and the stubs that jump through it.
//!
//! `build/exports.rs` generates the code from `data/driver-symbols.tsv`. A stub is one jump, so it
//! preserves all arguments of every signature, in registers and on the stack. Until the driver is
//! open, each slot holds a function that opens the driver and then jumps to the real function.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of one of [`crate::hooks`].
#[derive(Clone, Copy, Debug)]
pub struct Hook(pub *const ());

// SAFETY: the address of a function, which any thread may call.
unsafe impl Sync for Hook {}

/// One revision of a function.
#[derive(Debug)]
pub struct ExportRow {
    /// The name that programs pass to `cuGetProcAddress`.
    pub name: &'static str,
    /// The CUDA version that introduced this revision; 0 if unknown.
    pub version: i32,
    /// Whether it is the variant for per-thread default streams.
    pub twin: bool,
    /// Its symbol in the library.
    pub symbol: &'static str,
    /// Its slot in the table.
    pub slot: usize,
    /// The shim's hook for it.
    pub hook: Option<Hook>,
}

#[allow(non_upper_case_globals, reason = "the names are those of the driver's functions")]
mod generated {
    use super::{AtomicPtr, ExportRow, Hook, find_and_jump, naked_asm};

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

pub use generated::{NAMES, SLOTS, TABLE, rows, slot};

/// Returns the current target of a slot's calls.
pub fn address(slot: usize) -> *mut () {
    TABLE[slot].load(Ordering::Relaxed)
}

/// Sets the target of a slot's calls.
pub fn set(slot: usize, address: *mut c_void) {
    TABLE[slot].store(address.cast(), Ordering::Relaxed);
}

/// Opens the driver for the slot whose number is in r11, and jumps to its function.
///
/// It preserves the registers that carry arguments: six integers, eight vectors, and the count of
/// vectors in rax.
#[unsafe(naked)]
unsafe extern "C" fn find_and_jump() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "and rsp, -16",
        "sub rsp, 192",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov [rsp + 48], rax",
        "movaps [rsp + 64], xmm0",
        "movaps [rsp + 80], xmm1",
        "movaps [rsp + 96], xmm2",
        "movaps [rsp + 112], xmm3",
        "movaps [rsp + 128], xmm4",
        "movaps [rsp + 144], xmm5",
        "movaps [rsp + 160], xmm6",
        "movaps [rsp + 176], xmm7",
        "mov rdi, r11",
        "call {find}",
        "mov r11, rax",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "mov rax, [rsp + 48]",
        "movaps xmm0, [rsp + 64]",
        "movaps xmm1, [rsp + 80]",
        "movaps xmm2, [rsp + 96]",
        "movaps xmm3, [rsp + 112]",
        "movaps xmm4, [rsp + 128]",
        "movaps xmm5, [rsp + 144]",
        "movaps xmm6, [rsp + 160]",
        "movaps xmm7, [rsp + 176]",
        "mov rsp, rbp",
        "pop rbp",
        "jmp r11",
        find = sym find,
    )
}

extern "C" fn find(slot: usize) -> *mut () {
    super::open();
    super::opened(slot)
}
