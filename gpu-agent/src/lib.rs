//! tessera-agent
