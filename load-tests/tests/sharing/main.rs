//! Jobs that share a slice under MPS: real agents, daemons, servers and clients, on the stand-in
//! for NVIDIA's control program.

mod control;
mod rig;
mod rows;
