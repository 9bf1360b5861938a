//! Simulated GPUs: a device model that processes share, and clients of it.
//!
//! A simulated node is a folder. Every process that names it in `TESSERA_SIM_NODE` sees the
//! same GPUs; what is created there stays until it is destroyed, as on a GPU. The library
//! `libnvidia-ml.so.1` of `lab/stand-in/nvml` shows this model through NVML's C interface.
//!
//! | variable | meaning | unset |
//! |---|---|---|
//! | `TESSERA_SIM_NODE` | the node's folder, made on first use | refused |
//! | `TESSERA_SIM_GPUS` | catalogue keys of the GPUs, by index: `a100-40gb,a30-24gb` | one `a100-40gb` |
//! | `TESSERA_SIM_MIG` | `on` or `off`: MIG mode of a node that is made now | `on` |
//! | `TESSERA_SIM_LATENCY` | factor on the time that operations take; `0` for none | `1` |
//! | `TESSERA_SIM_FAULTS` | faults of this process, in the grammar of [`faults`] | none |
//! | `TESSERA_SIM_VERBOSE` | set to have the stand-in name itself on stderr | silent |
//!
//! The folder holds `device.json` (the state), `faults` (see [`faults`]), `fault-counts.json`, lock
//! files, and what other programs look at. The last are device files that clients hold open under
//! `dev`, the table of their minors under `proc`, and `boot_id`, which [`node::Node::reboot`]
//! renews. Nothing in it is tied to the machine but the processes it names, so all processes of a
//! node must share one process-id namespace.
//!
//! # What is known and what is not
//!
//! Profiles, placements, engines and figures are the catalogue's ([`tessera_model::mig::catalog`]).
//! Models of which no source states the placements are refused. NVML has no way to state
//! "unknown", so a figure that no source states reads `0` (SMs of an H20 slice, for one). Where
//! no source states a GPU's whole memory, the memory of its largest profile stands in for it.
//! Power and temperature follow the load that clients state, by the rule at
//! [`device::State::power_milliwatts`]; nothing else is derived.

pub mod client;
pub mod config;
pub mod cuda;
pub mod device;
pub mod faults;
mod files;
pub mod latency;
pub mod library;
pub mod mps;
pub mod node;
pub mod process;
