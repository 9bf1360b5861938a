//! Drives the stand-in as programs do: loaded by path, through `nvml-wrapper` and raw calls.

mod clients;
mod contract;
mod crashes;
mod figures;
mod injected_faults;
mod legality;
mod life;
mod readers;
mod rig;
