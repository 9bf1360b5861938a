//! `tessera mig states`: how many layouts there are, and how many each placement leaves reachable.

use std::fmt::Write as _;

use clap::Args;
use tessera_model::mig::{Geometry, Layout, ReachabilityMeasure, StateCounts, StateSpace};

use super::views::{PlacementView, SlotView, StateCountsView, StateReport};
use crate::failure::CommandFailure;
use crate::session::{OutputScreen, print, table};

#[derive(Args)]
pub struct StateArgs {
    /// A GPU model, such as a100-40gb
    #[arg(value_name = "MODEL")]
    model: String,
    /// Profiles to use: all, groups joined by + (plain, double, me), or names with commas
    #[arg(long, default_value = "plain", value_name = "PROFILES")]
    profiles: String,
    /// The current layout, such as 1g.5gb@6,2g.10gb@0; by default empty
    #[arg(long, default_value = "", value_name = "LAYOUT", hide_default_value = true)]
    layout: String,
}

impl StateArgs {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let model = super::model(&self.model)?;
        let geometry = model.geometry();
        let layout = super::layout(&geometry, &self.layout)?;
        let report = self.report(&model.key, &geometry, &layout)?;
        let screen = OutputScreen::of_stdout();
        print(json, &report, |report| drawn(report, &geometry, &layout, screen))?;
        Ok(0)
    }

    fn report(
        &self,
        model: &str,
        geometry: &Geometry,
        layout: &Layout,
    ) -> Result<StateReport, CommandFailure> {
        let offer = geometry.offer(&self.profiles);
        let offer = offer.map_err(CommandFailure::usage)?;
        let refused = |cause: tessera_model::mig::TooManyPlacements| {
            CommandFailure::refused(format!("{model}: {cause}"))
        };
        let machine = StateSpace::new(geometry, Some(&offer)).map_err(refused)?;
        // Instances that aren't on offer may exist anyway.
        let space = StateSpace::offering(geometry, &offer).map_err(refused)?;
        let state = space.state(layout).ok_or_else(|| {
            CommandFailure::usage("the layout can't be created on an empty GPU of this model")
        })?;
        let on_offer = || geometry.profiles.iter().filter(|p| offer.contains(&p.id));
        let placements = on_offer().flat_map(|profile| {
            let best = space.best_placement(state, profile.id).map(|(slot, _)| slot);
            let ways = space.placements(state, profile.id).into_iter();
            ways.map(move |(slot, reach)| PlacementView {
                profile: profile.name.to_string(),
                start: slot.start,
                size: profile.memory_slices,
                reachability: reach as u64,
                best: Some(slot) == best,
            })
        });
        Ok(StateReport {
            model: model.to_owned(),
            memory_slices: geometry.memory_slices,
            profiles: on_offer().map(|p| p.name.to_string()).collect(),
            counts: machine.counts().map(counted),
            measure: match space.measure() {
                ReachabilityMeasure::FullLayouts => "full_layouts".to_owned(),
                ReachabilityMeasure::OpenPlacements => "open_placements".to_owned(),
            },
            layout: SlotView::all(geometry, layout),
            reachability: space.reachability(state) as u64,
            placements: placements.collect(),
        })
    }
}

fn counted(counts: StateCounts) -> StateCountsView {
    StateCountsView {
        states: counts.states as u64,
        full_layouts: counts.full as u64,
        multisets: counts.multisets as u64,
    }
}

fn drawn(
    report: &StateReport,
    geometry: &Geometry,
    layout: &Layout,
    screen: OutputScreen,
) -> String {
    let mut text = format!("{}, on offer: {}\n", report.model, report.profiles.join(", "));
    match report.counts {
        Some(counts) => {
            let _ = writeln!(
                text,
                "{} states, {} full layouts ({} by profiles alone)",
                counts.states, counts.full_layouts, counts.multisets
            );
        }
        None => text.push_str("too many states to list\n"),
    }
    text.push_str(&super::bar(geometry, layout, screen));
    let exact = report.measure == "full_layouts";
    let what = if exact { "full layouts can still be reached" } else { "is its openness" };
    let _ = writeln!(text, "{} {what}\n", report.reachability);
    if report.placements.is_empty() {
        text.push_str("Nothing more fits.\n");
        return text;
    }
    text.push_str(&table(Some(&["PROFILE", "BEST START", "R BY START"]), rows(report)));
    text
}

/// One row for each profile that fits: `0:6 1:6 … 6:12`.
fn rows(report: &StateReport) -> Vec<Vec<String>> {
    let of = |name: &String| {
        let ways: Vec<&PlacementView> =
            report.placements.iter().filter(|p| p.profile == *name).collect();
        let best = ways.iter().find(|way| way.best)?.start;
        let all: Vec<String> =
            ways.iter().map(|way| format!("{}:{}", way.start, way.reachability)).collect();
        Some(vec![name.clone(), best.to_string(), all.join(" ")])
    };
    report.profiles.iter().filter_map(of).collect()
}
