//! The shim: a `libcuda.so.1` that is loaded in place of the driver's. A program that preloads it, or
//! finds it first on its library path, shares a slice kernel by kernel without changes.
//!
//! Every function of the driver is exported. Most are a jump to the real one ([`driver::table`]). Some
//! eighty have hooks ([`hooks`]): launches, names of kernels, waits for the device, captures, and
//! memory. `cuGetProcAddress` returns the hooks ([`procaddr`]).
//!
//! Rules for all code:
//!
//! - The shim does nothing before the program's first call. Without the agent's variables
//!   ([`settings`]) it only passes calls on. Threads, sockets and events start with the first launch
//!   ([`startup`]).
//! - Without a queue it may watch a program ([`watch`]): its memory, and its first launch. Then it has no thread and no
//!   socket, and launches after the first one are passed on.
//! - The program gets the driver's own answers. It never gets an error of the shim and never waits
//!   without a bound. A failure inside the shim turns it off ([`state`]).
//! - The shim holds no lock while it calls the driver, and the session's thread never calls the driver. A thread for
//!   recalls ([`recall`]) does both. Only the end of a context, and that of the process, wait for its lock.
//!
//! `unsafe` is used only at the boundary to C. A comment at each use states why it is sound.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the kernel shim's stubs are written for Linux on x86-64 so far");

mod abi;
mod allocations;
mod captures;
mod client;
mod clock;
mod counters;
mod driver;
mod events;
mod filler;
mod first_session;
mod first_wait;
mod gate;
mod hooks;
mod kernel_cache;
mod kernel_catalog;
mod launch;
mod log;
mod measure;
mod names;
mod park;
mod pause;
mod procaddr;
mod recall;
mod resources;
mod ring;
mod run_ahead;
mod sampling;
mod session;
mod settings;
mod slack;
mod startup;
mod state;
mod streams;
mod sync;
mod terms;
mod watch;
