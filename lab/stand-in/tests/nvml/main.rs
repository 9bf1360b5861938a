//! Drives the stand-in as programs do: loaded by path, through `nvml-wrapper` and raw calls.

mod clients;
mod contract;
mod crashes;
mod faults;
mod figures;
mod legality;
mod life;
mod readers;
mod rig;
