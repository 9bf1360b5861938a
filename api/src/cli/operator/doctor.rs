//! `tessera doctor`: what keeps machines from running jobs and cutting GPUs, and what mends it.

use std::fmt::Write as _;

use clap::Args;

use crate::cli::failure::Failure;
use crate::cli::session::{Screen, Session};
use crate::types::{DoctorReport, Finding};

#[derive(Args)]
pub struct Doctor {
    /// Only this machine; all of them without it
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Show what is in order, too
    #[arg(long)]
    all: bool,
}

impl Doctor {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        let reports = match &self.node {
            Some(node) => vec![session.client.doctor(node).await?],
            None => everywhere(session).await?,
        };
        let blocked = reports.iter().flat_map(|r| &r.findings).any(|f| f.level == "blocks");
        session.print(&reports, |reports| {
            reports.iter().map(|report| draw(report, self.all, session.screen)).collect()
        })?;
        Ok(u8::from(blocked))
    }
}

async fn everywhere(session: &Session) -> Result<Vec<DoctorReport>, Failure> {
    let mut reports = Vec::new();
    for node in session.client.nodes().await?.items {
        if node.state != "available" {
            let text = format!("the controller has no word from it: it is {}", node.state);
            let finding = Finding {
                check: "connection".to_owned(),
                level: "blocks".to_owned(),
                gpu: None,
                text,
                remedy: Some("run on the machine itself: tessera-agent doctor".to_owned()),
            };
            reports.push(DoctorReport { node: node.name, findings: vec![finding] });
            continue;
        }
        reports.push(session.client.doctor(&node.name).await?);
    }
    Ok(reports)
}

/// Shows one machine's report, the worst first.
fn draw(report: &DoctorReport, all: bool, screen: Screen) -> String {
    let count = |level: &str| report.findings.iter().filter(|f| f.level == level).count();
    let mut text = format!(
        "{}: {} blocking, {} to look at, {} in order\n",
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
