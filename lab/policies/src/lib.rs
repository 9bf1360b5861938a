//! Policies that exist only for comparison, and the registry of all policies that the simulator runs.
//!
//! Each is a policy of a paper or a baseline that the papers compare with. They need knowledge or
//! abilities that a controller doesn't have: a job's time on every slice, its demands, or its
//! migration. The policies that a controller offers are in [`tessera_placement::policy`].

#![forbid(unsafe_code)]

mod backfill;
mod cached;
mod dyna_p;
mod earliest_deadline;
mod elastic_flow;
mod gavel;
mod hadar;
mod miger;
mod miso;
mod mmk;
mod mps_only;
mod rounds;
mod scheme_a;
mod shares;
mod static_by_size;
mod static_promote;
mod time_slicing;
mod timeline;
mod whole_gpu;

use tessera_placement::policy::{NAMES, Policy, Tessera, by_name};

pub use backfill::{Backfill, DEPTH};
pub use dyna_p::DynaP;
pub use earliest_deadline::EarliestDeadline;
pub use elastic_flow::ElasticFlow;
pub use gavel::Gavel;
pub use hadar::Hadar;
pub use miger::Miger;
pub use miso::Miso;
pub use mmk::Mmk;
pub use mps_only::MpsOnly;
pub use rounds::ROUND;
pub use scheme_a::SchemeA;
pub use static_by_size::StaticBySize;
pub use static_promote::StaticPromote;
pub use time_slicing::TimeSlicing;

/// Names of the policies that only the simulator runs; [`find_policy`] knows them in addition to
/// [`NAMES`].
pub const COMPARISON_NAMES: &[&str] = &[
    "scheme-a",
    "static-promote",
    "time-slicing",
    "mps-only",
    "miso",
    "miger",
    "mmk",
    "oracle",
    "dyna-p",
    "easy",
    "conservative",
    "gavel",
    "hadar",
    "elastic-flow",
];

/// Finds a policy of [`NAMES`] or [`COMPARISON_NAMES`] by its name.
pub fn find_policy(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "scheme-a" => Some(Box::new(SchemeA)),
        "static-promote" => Some(Box::new(StaticPromote)),
        "time-slicing" => Some(Box::new(TimeSlicing)),
        "mps-only" => Some(Box::new(MpsOnly::THIRDS)),
        "miso" => Some(Box::new(Miso::MISO)),
        "miger" => Some(Box::new(Miger::default())),
        "mmk" => Some(Box::new(Mmk)),
        "oracle" => Some(Box::new(Miso::ORACLE)),
        "dyna-p" => Some(Box::new(DynaP)),
        "easy" => Some(Box::new(Backfill::EASY)),
        "conservative" => Some(Box::new(Backfill::CONSERVATIVE)),
        "gavel" => Some(Box::new(Gavel)),
        "hadar" => Some(Box::new(Hadar::HADAR)),
        "elastic-flow" => Some(Box::new(ElasticFlow)),
        // The simulator knows the time of every job, and can move every job.
        "tessera" => Some(Box::new(Tessera::default())),
        _ => by_name(name),
    }
}

/// Returns every name that [`find_policy`] knows.
pub fn all_names() -> Vec<&'static str> {
    NAMES.iter().chain(COMPARISON_NAMES).copied().collect()
}
