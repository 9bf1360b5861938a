//! tessera-wire
