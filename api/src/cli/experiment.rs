//! `tessera experiment`: rows of the papers, rerun.

use clap::Args;
use tessera_sim::cluster::experiment::{self, Finding, Proof, Side};

use super::failure::Failure;
use super::session::{print, table};
use super::simulate::Bar;

/// Reruns experiments of the papers in the simulator and prints what came out beside what is
/// printed there, with tolerance and distance from the bound (a mean ± the standard deviation where
/// several seeds or orders are run); exit with 1 if one doesn't come out
/// and it is not known why.
#[derive(Args)]
pub struct Experiment {
    /// Which ones; all that take some seconds at most, if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Experiment {
    pub fn run(&self, json: bool) -> Result<u8, Failure> {
        let quick = experiment::names().filter(|name| !experiment::is_long(name));
        let all: Vec<String> = quick.map(str::to_owned).collect();
        let names = if self.names.is_empty() { &all } else { &self.names };
        let known =
            |name: &&String| experiment::names().any(|known| name.eq_ignore_ascii_case(known));
        if let Some(name) = names.iter().find(|name| !known(name)) {
            let known = experiment::names().collect::<Vec<_>>().join(", ");
            let text = format!("there is no experiment {name:?}: choose of {known}");
            return Err(Failure::Usage(text));
        }
        let bar = Bar::experiments(names.len());
        let mut findings: Vec<Finding> = Vec::new();
        for (done, name) in (0..).zip(names) {
            bar.set(done);
            findings.extend(experiment::of(&name.to_ascii_uppercase()).unwrap_or_default());
        }
        bar.finish();
        print(json, &findings, |findings| drawn(findings))?;
        Ok(u8::from(findings.iter().any(|finding| !finding.holds && finding.short.is_none())))
    }
}

fn drawn(findings: &[Finding]) -> String {
    let header = ["ID", "WHAT", "PRINTED", "FOUND", "TOLERANCE", "X/LB", "PROOF", ""];
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
            match f.proof {
                Proof::Exact => "exact".to_owned(),
                Proof::Calibrated => "calibrated".to_owned(),
                Proof::Proxy => "proxy".to_owned(),
            },
            match (f.holds, f.short) {
                (true, _) => "holds".to_owned(),
                (false, Some(why)) => format!("short: {why}"),
                (false, None) => "FAILS".to_owned(),
            },
        ]
    });
    table(Some(&header), rows)
}
