//! GPUs, through NVIDIA's management library.
//!
//! The library may hang for ever in the kernel, crash, or be missing: its calls are made in a
//! process of their own ([`worker`]), which [`client`] asks with a deadline for each request and
//! replaces when it doesn't answer. Nothing else in the agent waits for it.

pub mod calls;
pub mod checkup;
pub mod client;
pub mod counts;
pub mod events;
pub mod fault;
pub mod messages;
pub mod read;
pub mod sample;
pub mod watch;
pub mod worker;
