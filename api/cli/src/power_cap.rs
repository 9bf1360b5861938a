//! The power of the GPUs, and its limit: `tessera power-cap`.

use clap::Args;
use tessera_api_types::PowerReport;

use super::failure::CommandFailure;
use super::session::{CommandSession, fields};

#[derive(Args)]
pub struct PowerCapView {}

impl PowerCapView {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        session.print(&session.client.power().await?, draw)?;
        Ok(0)
    }
}

fn draw(report: &PowerReport) -> String {
    let cap = match report.cap_watts {
        Some(cap) => format!("{cap} W"),
        None => "none (an operator sets power-cap in the controller's settings)".to_owned(),
    };
    let left = report.cap_watts.map(|cap| match cap.checked_sub(report.expected_watts) {
        Some(left) => format!("{left} W"),
        None => format!("none: {} W above the cap until jobs end", report.expected_watts - cap),
    });
    let unknown = (!report.unknown_models.is_empty()).then(|| {
        format!("{} (the highest known limit is assumed)", report.unknown_models.join(", "))
    });
    fields(vec![
        ("Power cap", Some(cap)),
        (
            "Expected",
            Some(format!("{} W at most (idle GPUs and the slices in use)", report.expected_watts)),
        ),
        ("Left", left),
        ("All idle", Some(format!("{} W", report.idle_watts))),
        ("All in use", Some(format!("{} W", report.full_watts))),
        ("Unknown models", unknown),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cap: Option<u64>) -> PowerReport {
        PowerReport {
            cap_watts: cap,
            expected_watts: 900,
            idle_watts: 200,
            full_watts: 2_000,
            unknown_models: Vec::new(),
        }
    }

    #[test]
    fn what_is_left_below_the_cap_is_shown_and_what_is_above_it() {
        assert!(draw(&report(Some(1_000))).contains("100 W"));
        assert!(draw(&report(Some(600))).contains("300 W above the cap until jobs end"));
        let without = draw(&report(None));
        assert!(without.contains("none (an operator sets power-cap"), "{without}");
        assert!(!without.contains("Left"), "{without}");
    }
}
