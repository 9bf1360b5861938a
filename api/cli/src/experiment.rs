//! `tessera experiment`: reruns of published experiments.

use clap::Args;
use tessera_simulator::cluster::experiment::{self, Finding, Side};

use super::failure::CommandFailure;
use super::session::{print, table};
use super::simulate::SimulationProgress;

/// Reruns experiments of the papers in the simulator, and prints the results next to the published
/// ones, with the tolerance and the ratio to the bound. Where several seeds or orders are run, a
/// result is a mean ± its standard deviation. Exits with 1 if a result differs for an unknown
/// reason.
#[derive(Args)]
pub struct Experiment {
    /// Names of experiments; by default all that take a few seconds
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// First seed of experiments that take one, such as BATCHES
    #[arg(long, value_name = "SEED")]
    first_seed: Option<u64>,
}

impl Experiment {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let quick = experiment::names().filter(|name| !experiment::is_long(name));
        let all: Vec<String> = quick.map(str::to_owned).collect();
        let names = if self.names.is_empty() { &all } else { &self.names };
        let known =
            |name: &&String| experiment::names().any(|known| name.eq_ignore_ascii_case(known));
        if let Some(name) = names.iter().find(|name| !known(name)) {
            let known = experiment::names().collect::<Vec<_>>().join(", ");
            let text = format!("there is no experiment {name:?}: choose from {known}");
            return Err(CommandFailure::usage(text));
        }
        let bar = SimulationProgress::experiments(names.len());
        let mut findings: Vec<Finding> = Vec::new();
        for (done, name) in (0..).zip(names) {
            bar.set(done);
            findings.extend(self.findings(&name.to_ascii_uppercase())?);
        }
        bar.finish();
        print(json, &findings, |findings| drawn(findings))?;
        Ok(u8::from(findings.iter().any(|finding| !finding.holds && finding.short.is_none())))
    }

    fn findings(&self, name: &str) -> Result<Vec<Finding>, CommandFailure> {
        match self.first_seed {
            None => Ok(experiment::of(name).unwrap_or_default()),
            Some(first) => experiment::with_seeds_from(name, first).ok_or_else(|| {
                let text = format!(
                    "{name} has fixed seeds: --first-seed goes with {} only",
                    experiment::WITH_FIRST_SEED.join(", ")
                );
                CommandFailure::usage(text)
            }),
        }
    }
}

fn drawn(findings: &[Finding]) -> String {
    let header = ["ID", "EXPERIMENT", "PUBLISHED", "FOUND", "TOLERANCE", "X/LB", "PROOF", "RESULT"];
    let rows = findings.iter().map(|f| {
        let bound = match f.side {
            Side::Near => "",
            Side::AtMost => "at most ",
            Side::AtLeast => "at least ",
        };
        vec![
            f.id.to_owned(),
            f.what.clone(),
            format!("{bound}{}", f.expected),
            match f.spread {
                Some(spread) => format!("{} ± {spread}", f.found),
                None => f.found.to_string(),
            },
            format!("{:.2}", f.tolerance),
            f.over_bound.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")),
            f.proof.text().to_owned(),
            match (f.holds, f.short) {
                (true, _) => "holds".to_owned(),
                (false, Some(why)) => format!("short: {why}"),
                (false, None) => "FAILS".to_owned(),
            },
        ]
    });
    table(Some(&header), rows)
}
