//! Runs the checks: `tessera-tidy [--root DIR] [visible|enforced|comments|names|rings]...`.
//!
//! `comments` and `names` list the findings of the whole repository, `enforced` those in the folders
//! that must not have any.

use std::path::PathBuf;
use std::process::ExitCode;

use tessera_tidy::files;
use tessera_tidy::prose::{TextKind, check_enforced, check_repository};
use tessera_tidy::rings;

fn main() -> anyhow::Result<ExitCode> {
    let mut checks: Vec<String> = std::env::args().skip(1).collect();
    let root = match checks.first().map(String::as_str) {
        Some("--root") if checks.len() > 1 => checks.drain(..2).nth(1).map(PathBuf::from),
        _ => None,
    };
    let root = root.unwrap_or_else(files::repository);
    if checks.is_empty() {
        checks.push("visible".to_owned());
    }
    let mut found = 0;
    for check in &checks {
        let lines: Vec<String> = match check.as_str() {
            "visible" => shown(&check_repository(&root, TextKind::Visible)?),
            "enforced" => shown(&check_enforced(&root)?),
            "comments" => shown(&check_repository(&root, TextKind::Comments)?),
            "names" => shown(&check_repository(&root, TextKind::Names)?),
            "rings" => shown(&rings::find_rings(&root)?),
            _ => anyhow::bail!(
                "no check is called {check}: use visible, enforced, comments, names or rings"
            ),
        };
        for line in &lines {
            println!("{line}");
        }
        println!("tessera-tidy {check}: {} findings", lines.len());
        found += lines.len();
    }
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(findings: &[impl ToString]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}
