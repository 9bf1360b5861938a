//! Everything that operators install and read: packages, settings, pages, boards, alerts, traces
//! and images.
//!
//! Parts that need minutes run with `TESSERA_LONG_TESTS=1`, and those that need a tool which is
//! missing report that they are skipped.

mod alerts;
mod boards;
mod bundle;
mod containers;
mod live_alerts;
mod packages;
mod page;
mod reload;
mod settings;
mod tools;
mod tracing_page;
