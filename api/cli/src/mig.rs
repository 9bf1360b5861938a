//! `tessera mig`: the partition state machine of a GPU model, without a cluster.

mod check;
mod cuts;
mod states;
mod views;

use clap::{Args, Subcommand};
use tessera_model::mig::catalog::{self, GpuModel};
use tessera_model::mig::{Geometry, Layout, Slot};

use super::failure::CommandFailure;
use super::gpus::bar;
use super::session::OutputScreen;

pub use views::{CutReport, LegalityReport, StateReport};

#[derive(Args)]
pub struct Mig {
    #[command(subcommand)]
    verb: MigVerb,
}

#[derive(Subcommand)]
enum MigVerb {
    /// Count the states of a GPU model, and rate each possible next placement
    States(states::StateArgs),
    /// Run legality steps on a GPU model; exit with 1 if a result differs from the expected one
    Check(check::CheckArgs),
    /// List the compute instances that GPU instances can be split into
    Cuts(cuts::CutArgs),
}

impl Mig {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        match &self.verb {
            MigVerb::States(verb) => verb.run(json),
            MigVerb::Check(verb) => verb.run(json),
            MigVerb::Cuts(verb) => verb.run(json),
        }
    }
}

fn model(name: &str) -> Result<&'static GpuModel, CommandFailure> {
    catalog::find(name).map_err(CommandFailure::usage)
}

/// Parses a layout such as `1g.5gb@6,2g.10gb@0`.
fn layout(geometry: &Geometry, text: &str) -> Result<Layout, CommandFailure> {
    let mut slots = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        slots.push(slot(geometry, part)?);
    }
    geometry.check(&slots).map_err(CommandFailure::usage)?;
    Ok(slots.into_iter().collect())
}

fn slot(geometry: &Geometry, text: &str) -> Result<Slot, CommandFailure> {
    let shape = || {
        let text = format!("{text:?} is not an instance: write PROFILE@START, such as 1g.5gb@6");
        CommandFailure::usage(text)
    };
    let (name, start) = text.split_once('@').ok_or_else(shape)?;
    let start = start.trim().parse().map_err(|_| shape())?;
    let offer = geometry.offer(name).map_err(CommandFailure::usage)?;
    let profile = offer.into_iter().next().ok_or_else(shape)?;
    Ok(Slot { start, profile })
}

/// Draws a layout as a bar.
fn bar(geometry: &Geometry, layout: &Layout, screen: OutputScreen) -> String {
    let boxes = layout.iter().filter_map(|slot| {
        let profile = geometry.profile(slot.profile)?;
        Some((slot.start, profile.memory_slices, profile.name.as_str()))
    });
    bar::draw_slots(geometry.memory_slices, boxes, screen)
}
