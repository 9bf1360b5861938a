//! tessera-telemetry
