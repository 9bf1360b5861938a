//! tessera-sim
