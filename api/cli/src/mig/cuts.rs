//! `tessera mig cuts`: the compute instances that a model's GPU instances can be split into.

use clap::Args;
use tessera_model::mig::ProfileName;
use tessera_model::mig::compute::{ComputeName, memory_share, offered};

use super::views::{CutReport, CutView};
use crate::failure::CommandFailure;
use crate::session::{print, table};

#[derive(Args)]
pub struct CutArgs {
    /// A GPU model, such as a100-40gb
    #[arg(value_name = "MODEL")]
    model: String,
    /// List only this profile, such as 3g.20gb
    #[arg(value_name = "PROFILE")]
    profile: Option<ProfileName>,
}

impl CutArgs {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let model = super::model(&self.model)?;
        let geometry = model.geometry();
        if let Some(name) = &self.profile
            && geometry.by_name(name).is_none()
        {
            let offered: Vec<_> = geometry.profiles.iter().map(|p| p.name.to_string()).collect();
            let text = format!(
                "{} has no profile {name}; its profiles are {}",
                model.key,
                offered.join(", ")
            );
            return Err(CommandFailure::usage(text));
        }
        let chosen = geometry
            .profiles
            .iter()
            .filter(|profile| self.profile.as_ref().is_none_or(|name| *name == profile.name));
        let cuts = chosen.flat_map(|profile| {
            let parts = offered(profile.compute_slices).iter();
            let parts = parts.filter(|size| size.slices < profile.compute_slices);
            parts.map(move |size| CutView {
                name: ComputeName { slices: size.slices, profile: profile.name.clone() }
                    .to_string(),
                profile: profile.name.to_string(),
                compute_slices: size.slices,
                starts: size.starts.to_vec(),
                memory_bytes: memory_share(profile.memory, profile.compute_slices, size.slices)
                    .get(),
            })
        });
        let report = CutReport { model: model.key.clone(), cuts: cuts.collect() };
        print(json, &report, drawn)?;
        Ok(0)
    }
}

fn drawn(report: &CutReport) -> String {
    let row = |cut: &CutView| {
        let starts: Vec<_> = cut.starts.iter().map(ToString::to_string).collect();
        vec![
            cut.name.clone(),
            cut.profile.clone(),
            cut.starts.len().to_string(),
            starts.join(" "),
            tessera_model::Bytes::new(cut.memory_bytes).to_string(),
        ]
    };
    let rows = report.cuts.iter().map(row);
    let titles = ["NAME", "OF", "AT MOST", "COMPUTE SLICES", "MEMORY COUNTED"];
    format!(
        "{}Compute instances of one GPU instance hold its memory together: nothing divides it.\n",
        table(Some(&titles), rows)
    )
}
