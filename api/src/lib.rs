//! tessera-api
