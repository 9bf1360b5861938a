//! tessera-controller
