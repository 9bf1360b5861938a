//! Placement decisions and layout plans: `tessera decisions`, `tessera layouts`.

use std::fmt::Write as _;

use clap::Args;

use super::explain::{candidates, sentence};
use super::failure::CommandFailure;
use super::session::{CommandSession, moment, or_dash, table};
use tessera_api_types::{DecisionPage, DecisionView, LayoutPlan, LayoutPlans};

#[derive(Args)]
pub struct DecisionList {
    /// Show only this decision, with all details
    #[arg(value_name = "DECISION")]
    id: Option<String>,
    /// List only decisions about this job
    #[arg(long, value_name = "JOB")]
    job: Option<u64>,
    /// Maximum number to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: u32,
}

impl DecisionList {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.id {
            Some(id) => session.print(&session.client.decision(&id).await?, draw_one)?,
            None => {
                let decisions = session.client.decisions(self.job, self.limit).await?;
                session.print(&decisions, draw)?;
            }
        }
        Ok(0)
    }
}

fn draw(decisions: &DecisionPage) -> String {
    let header = ["WHEN", "JOB", "OUTCOME", "WHY", "DECISION"];
    table(
        Some(&header),
        decisions.items.iter().map(|decision| {
            vec![
                moment(decision.at),
                decision.job_id.to_string(),
                decision.outcome.clone(),
                decision.summary.clone(),
                decision.id.clone(),
            ]
        }),
    )
}

fn draw_one(decision: &DecisionView) -> String {
    let reason = decision.reason.as_deref().map(|word| format!(" ({word})")).unwrap_or_default();
    let mut text = format!(
        "{}: job {}: {}{reason}, decided by policy {} at {}.\n{}\n",
        decision.id,
        decision.job_id,
        decision.outcome,
        decision.policy,
        moment(decision.at),
        sentence(&decision.summary),
    );
    if !decision.steps.is_empty() {
        let _ = writeln!(text, "Layout steps before the start: {}.", decision.steps.join(", "));
    }
    if let Some(condition) = &decision.would_start_if {
        let _ = writeln!(text, "{}", sentence(&format!("It would start if {condition}")));
    }
    text.push_str(&candidates(&decision.candidates, decision.candidates_left_out));
    text
}

#[derive(Args)]
pub struct Layouts {
    /// List only plans for this GPU: node-a:0, or its UUID
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Maximum number to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: u32,
}

impl Layouts {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let changes = session.client.layouts(self.gpu.as_deref(), self.limit).await?;
        session.print(&changes, draw_layouts)?;
        Ok(0)
    }
}

/// Draws layout plans as a table.
pub fn draw_layouts(changes: &LayoutPlans) -> String {
    let header = ["PLANNED", "TOOK", "NODE", "STATE", "STEPS", "FOR JOB", "DETAIL"];
    table(Some(&header), changes.items.iter().map(layout_row))
}

fn layout_row(change: &LayoutPlan) -> Vec<String> {
    let took = change.ended_at.map(|end| {
        let millis = (end - change.planned_at).whole_milliseconds();
        format!("{millis} ms")
    });
    vec![
        moment(change.planned_at),
        or_dash(took),
        change.node.clone(),
        change.state.clone(),
        steps(&change.steps),
        match &change.requested_by {
            Some(by) => format!("by {by}"),
            None => or_dash(change.job_id),
        },
        change.detail.clone().unwrap_or_default(),
    ]
}

/// Groups equal steps: `create 1g.5gb @0 @1`, since a plan may have a dozen of them.
fn steps(steps: &[String]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for step in steps {
        let (what, place) = step.split_once('@').unwrap_or((step, ""));
        match groups.last_mut() {
            Some((last, places)) if *last == what && !place.is_empty() => places.push(place),
            _ => groups.push((what, if place.is_empty() { vec![] } else { vec![place] })),
        }
    }
    let listed = groups.iter().map(|(what, places)| {
        let places: String = places.iter().map(|place| format!(" @{place}")).collect();
        format!("{what}{places}")
    });
    listed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_steps_are_put_together() {
        let given = ["destroy 2g.10gb@0", "create 1g.5gb@0", "create 1g.5gb@1", "reset"];

        let listed = steps(&given.map(str::to_owned));

        assert_eq!(listed, "destroy 2g.10gb @0, create 1g.5gb @0 @1, reset");
    }
}
