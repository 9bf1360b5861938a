//! `tessera mig`: the partition state machine of a GPU model, without a cluster.

mod check;
mod cuts;
mod states;
mod views;

use clap::{Args, Subcommand};
use tessera_model::mig::catalog::{self, Model};
use tessera_model::mig::{Geometry, Layout, Slot};

use super::failure::Failure;
use super::gpus::bar;
use super::session::Screen;

pub use views::{CutReport, LegalityReport, StateReport};

#[derive(Args)]
pub struct Mig {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Count the states of a GPU model, and weigh each placement that can follow
    States(states::States),
    /// Run legality steps on a GPU model; exit with 1 if one goes otherwise than it says
    Check(check::Check),
    /// List the compute instances that GPU instances can be cut into
    Cuts(cuts::Cuts),
}

impl Mig {
    pub fn run(&self, json: bool) -> Result<u8, Failure> {
        match &self.verb {
            Verb::States(verb) => verb.run(json),
            Verb::Check(verb) => verb.run(json),
            Verb::Cuts(verb) => verb.run(json),
        }
    }
}

fn model(name: &str) -> Result<&'static Model, Failure> {
    catalog::find(name).map_err(|unknown| Failure::Usage(unknown.to_string()))
}

/// Reads a layout as `1g.5gb@6,2g.10gb@0`.
fn layout(geometry: &Geometry, text: &str) -> Result<Layout, Failure> {
    let mut slots = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        slots.push(slot(geometry, part)?);
    }
    geometry.check(&slots).map_err(|illegal| Failure::Usage(illegal.to_string()))?;
    Ok(slots.into_iter().collect())
}

fn slot(geometry: &Geometry, text: &str) -> Result<Slot, Failure> {
    let shape = || {
        let text = format!("{text:?} is no instance: write PROFILE@START, such as 1g.5gb@6");
        Failure::Usage(text)
    };
    let (name, start) = text.split_once('@').ok_or_else(shape)?;
    let start = start.trim().parse().map_err(|_| shape())?;
    let offer = geometry.offer(name).map_err(|bad| Failure::Usage(bad.to_string()))?;
    let profile = offer.into_iter().next().ok_or_else(shape)?;
    Ok(Slot { start, profile })
}

/// Draws a layout as a bar.
fn bar(geometry: &Geometry, layout: &Layout, screen: Screen) -> String {
    let boxes = layout.iter().filter_map(|slot| {
        let profile = geometry.profile(slot.profile)?;
        Some((slot.start, profile.memory_slices, profile.name.as_str()))
    });
    bar::draw_slots(geometry.memory_slices, boxes, screen)
}
