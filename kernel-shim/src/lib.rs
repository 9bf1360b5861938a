//! `libcuda.so.1` in front of the driver's: a program that is preloaded with it, or finds it first
//! on its library path, shares a slice kernel by kernel without knowing.
//!
//! Every function of the driver is exported. Most are a jump to the real one ([`exports`]); some
//! eighty are looked at ([`hooks`]): launches, what names kernels, what waits for the device,
//! captures, and memory. `cuGetProcAddress` answers with these ([`procaddr`]), so that whoever asks
//! the driver for its functions gets them too.
//!
//! What holds everywhere:
//!
//! - Nothing happens before the program's first call, and nothing but passing calls on unless the
//!   agent's variables are set ([`settings`]). Threads, sockets and events come with the first
//!   launch ([`session`]).
//! - The program gets the driver's own answers: never an error of the shim's, never a wait without
//!   a bound. What goes wrong here turns the shim off ([`state`]).
//! - No lock of the shim is held while the driver is called, and no thread of the shim's calls it.
//!
//! `unsafe` stands where C is spoken, and only there; each place says why it is sound.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the kernel shim's stubs are written for Linux on x86-64 so far");

mod abi;
mod allocations;
mod client;
mod clock;
mod counters;
mod driver;
mod events;
mod exports;
mod fill;
mod gate;
mod hooks;
mod kernels;
mod launch;
mod log;
mod measure;
mod names;
mod procaddr;
mod ring;
mod session;
mod settings;
mod slack;
mod state;
mod streams;
