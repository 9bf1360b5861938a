//! tessera-placement
