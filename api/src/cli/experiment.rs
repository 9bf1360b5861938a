//! `tessera experiment`: rows of the papers, rerun.

use clap::Args;
use tessera_sim::cluster::experiment::{self, Finding, Proof};

use super::failure::Failure;
use super::session::{print, table};

/// Reruns experiments of the papers in the simulator and prints what came out beside what is
/// printed there; exit with 1 if one doesn't come out.
#[derive(Args)]
pub struct Experiment {
    /// Which ones; all, if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Experiment {
    pub fn run(&self, json: bool) -> Result<u8, Failure> {
        let all = experiment::NAMES.map(str::to_owned).to_vec();
        let names = if self.names.is_empty() { &all } else { &self.names };
        let mut findings: Vec<Finding> = Vec::new();
        for name in names {
            let found = experiment::of(&name.to_ascii_uppercase()).ok_or_else(|| {
                let known = experiment::NAMES.join(", ");
                Failure::Usage(format!("there is no experiment {name:?}: choose of {known}"))
            })?;
            findings.extend(found);
        }
        print(json, &findings, |findings| drawn(findings))?;
        Ok(u8::from(findings.iter().any(|finding| !finding.holds)))
    }
}

fn drawn(findings: &[Finding]) -> String {
    let header = ["ID", "WHAT", "PRINTED", "FOUND", "TOLERANCE", "PROOF", ""];
    let rows = findings.iter().map(|f| {
        let bound = if f.at_most { "at most " } else { "" };
        vec![
            f.id.to_owned(),
            f.what.clone(),
            format!("{bound}{}", f.expected),
            f.found.to_string(),
            format!("{:.2}", f.tolerance),
            match f.proof {
                Proof::Exact => "exact".to_owned(),
                Proof::Calibrated => "calibrated".to_owned(),
                Proof::Proxy => "proxy".to_owned(),
            },
            if f.holds { "holds".to_owned() } else { "FAILS".to_owned() },
        ]
    });
    table(Some(&header), rows)
}
