//! `tessera doctor`: whether nodes can run jobs and partition GPUs, and how to fix what is wrong.

use std::fmt::Write as _;

use clap::Args;

use crate::failure::CommandFailure;
use crate::session::{CommandSession, OutputScreen};
use tessera_api_types::{DoctorFinding, DoctorReport};

#[derive(Args)]
pub struct Doctor {
    /// Check only this node; by default all nodes
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Show passed checks, too
    #[arg(long)]
    all: bool,
}

impl Doctor {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let reports = match &self.node {
            Some(node) => vec![session.client.doctor(node).await?],
            None => check_all_nodes(session).await?,
        };
        let blocked = reports.iter().flat_map(|r| &r.findings).any(|f| f.level == "blocks");
        session.print(&reports, |reports| {
            reports.iter().map(|report| draw(report, self.all, session.screen)).collect()
        })?;
        Ok(u8::from(blocked))
    }
}

async fn check_all_nodes(session: &CommandSession) -> Result<Vec<DoctorReport>, CommandFailure> {
    let mut reports = Vec::new();
    for node in session.client.nodes().await?.items {
        if node.state != "available" {
            let text = format!("it does not report to the controller: it is {}", node.state);
            let finding = DoctorFinding {
                check: "connection".to_owned(),
                level: "blocks".to_owned(),
                gpu: None,
                text,
                remedy: Some("run on the node itself: tessera-agent doctor".to_owned()),
            };
            reports.push(DoctorReport { node: node.name, findings: vec![finding] });
            continue;
        }
        reports.push(session.client.doctor(&node.name).await?);
    }
    Ok(reports)
}

/// Draws one node's report, the most severe findings first.
fn draw(report: &DoctorReport, all: bool, screen: OutputScreen) -> String {
    let count = |level: &str| report.findings.iter().filter(|f| f.level == level).count();
    let mut text = format!(
        "{}: {} blocking, {} warnings, {} passed\n",
        screen.paint("1", &report.node),
        count("blocks"),
        count("warn"),
        count("ok"),
    );
    for (level, style) in [("blocks", "31"), ("warn", "33"), ("ok", "32")] {
        if level == "ok" && !all {
            continue;
        }
        for finding in report.findings.iter().filter(|finding| finding.level == level) {
            let gpu = finding.gpu.map(|gpu| format!("GPU {gpu}: ")).unwrap_or_default();
            let word = screen.paint(style, &format!("{level:<6}"));
            let _ = writeln!(text, "  {word} {:<20} {gpu}{}", finding.check, finding.text);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "         {:<20} -> {remedy}", "");
            }
        }
    }
    text
}
