//! tessera-load-tests
