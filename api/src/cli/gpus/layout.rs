//! `tessera gpus layout`: shows, plans and applies layouts, and what can still be made.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Ids, draw, names};
use crate::cli::failure::Failure;
use crate::cli::operator::{said, whoami};
use crate::cli::session::{Session, moment, table};
use crate::client::{ClientError, OperatorVerb};
use crate::types::{
    Gpu, Gpus, LayoutApplied, LayoutChange, LayoutOutlook, LayoutPlan, LayoutRequest,
    OperatorRequest,
};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often an order is repeated while its GPU is being changed for a job; each waits up to 15
/// seconds at the controller.
const TRIES_MAX: u32 = 20;

/// Shows and changes layouts by hand.
#[derive(Args)]
pub struct Layout {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Draw a GPU's layout: who runs where, what is idle, what is stuck
    Show(OneGpu),
    /// Say which steps lead to a layout, and how long they take; change nothing
    Plan(PlanLayout),
    /// Give a GPU a layout, around everything that is in use
    Apply(ApplyLayout),
    /// Say what can still be made, and what must end first for the rest
    Outlook(OneGpu),
    /// Keep a GPU's layout as it is: jobs use its slices and change nothing
    Pin(PinLayout),
    /// Let a GPU's layout follow the jobs again
    Unpin(OneGpu),
}

#[derive(Args)]
struct OneGpu {
    /// node-a:0, or a GPU's UUID, or the beginning of one
    #[arg(value_name = "GPU")]
    gpu: String,
}

#[derive(Args)]
struct PinLayout {
    /// node-a:0, or a GPU's UUID, or the beginning of one
    #[arg(value_name = "GPU")]
    gpu: String,
    /// Why, for those who wonder
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args)]
struct PlanLayout {
    /// node-a:0, or a GPU's UUID, or the beginning of one
    #[arg(value_name = "GPU")]
    gpu: String,
    /// All instances that shall stand: 3g.20gb,2x1g.5gb,2g.10gb@4, or empty; with several compute
    /// instances in one GPU instance 1c+2c.3g.20gb
    #[arg(value_name = "LAYOUT")]
    layout: String,
}

#[derive(Args)]
struct ApplyLayout {
    #[command(flatten)]
    what: PlanLayout,
    /// Keep it: jobs may then only use its slices
    #[arg(long)]
    pin: bool,
    /// Why, for those who wonder
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Return once it is committed, without waiting for its end
    #[arg(long)]
    no_wait: bool,
}

impl Layout {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        match self.verb {
            Verb::Show(OneGpu { gpu }) => show(session, &gpu).await,
            Verb::Plan(PlanLayout { gpu, layout }) => {
                let plan = session.client.plan_layout(&gpu, &layout).await?;
                session.print(&plan, draw_plan)?;
                Ok(0)
            }
            Verb::Apply(verb) => verb.run(session).await,
            Verb::Outlook(OneGpu { gpu }) => {
                let outlook = session.client.layout_outlook(&gpu).await?;
                session.print(&outlook, draw_outlook)?;
                Ok(0)
            }
            Verb::Pin(PinLayout { gpu, reason }) => {
                pin(session, &gpu, OperatorVerb::Pin, reason).await
            }
            Verb::Unpin(OneGpu { gpu }) => pin(session, &gpu, OperatorVerb::Unpin, None).await,
        }
    }
}

async fn show(session: &Session, gpu: &str) -> Result<u8, Failure> {
    let gpu = session.client.layout(gpu).await?;
    let gpus = Gpus { items: vec![gpu] };
    let names = if session.json { super::Names::new() } else { names(session, &gpus).await? };
    session.print(&gpus.items[0], |_| draw(&gpus, Ids::Shown, &names, session.screen))?;
    Ok(0)
}

async fn pin(
    session: &Session,
    gpu: &str,
    verb: OperatorVerb,
    reason: Option<String>,
) -> Result<u8, Failure> {
    let request = OperatorRequest { by: whoami(), reason, slice: None };
    let result = session.client.tell_gpu(gpu, verb, &request).await?;
    let text = match (verb, result.changed) {
        (OperatorVerb::Pin, true) => "is pinned: jobs use its slices as they are",
        (OperatorVerb::Pin, false) => "was pinned before",
        (_, true) => "is unpinned: its layout follows the jobs",
        (_, false) => "was not pinned",
    };
    said(session, &result, &format!("{gpu} {text}"))
}

fn draw_plan(plan: &LayoutPlan) -> String {
    let stand = if plan.layout.is_empty() { "nothing".to_owned() } else { plan.layout.join(", ") };
    let mut text = format!("{}:{} would have {stand}\n", plan.node, plan.index);
    if plan.steps.is_empty() {
        text.push_str("It stands already: there is nothing to do.\n");
        return text;
    }
    for (number, step) in (1..).zip(&plan.steps) {
        let _ = writeln!(text, "  {number}. {step}");
    }
    let kept = match plan.kept.is_empty() {
        true => String::new(),
        false => format!("; left alone: {}", plan.kept.join(", ")),
    };
    let _ = writeln!(text, "expected to take {:.2} s{kept}", plan.predicted_secs);
    if let Some(count) = plan.reachability_after {
        let layouts = if count == 1 { "full layout stays" } else { "full layouts stay" };
        let _ = writeln!(text, "{count} {layouts} reachable afterwards");
    }
    text
}

fn draw_outlook(outlook: &LayoutOutlook) -> String {
    let rows = outlook.profiles.iter().map(|profile| {
        vec![
            profile.profile.clone(),
            profile.now.to_string(),
            profile.after_idle.to_string(),
            profile.ready_at.map_or_else(|| "-".to_owned(), moment),
            profile.text.clone(),
        ]
    });
    let header = ["PROFILE", "NOW", "WITHOUT IDLE", "FREE BY", "WHAT IT TAKES"];
    format!("{}:{}\n{}", outlook.node, outlook.index, table(Some(&header), rows))
}

impl ApplyLayout {
    async fn run(self, session: &Session) -> Result<u8, Failure> {
        let gpu = &self.what.gpu;
        let request = LayoutRequest {
            layout: self.what.layout.clone(),
            pin: self.pin,
            by: whoami(),
            reason: self.reason.clone(),
        };
        let applied = ordered(session, gpu, &request).await?;
        let Some(plan) = applied.plan.clone().filter(|_| !self.no_wait) else {
            session.print(&applied, |applied| match applied.plan.as_deref() {
                Some(plan) => format!("{gpu}: the layout is ordered ({plan})\n"),
                None => format!("{gpu}: the layout stands already\n"),
            })?;
            return Ok(0);
        };
        let change = follow(session, &applied.gpu, &plan).await?;
        let code = u8::from(change.state != "done");
        session.print(&change, |change| told(gpu, change))?;
        Ok(code)
    }
}

/// Orders a layout, again while its GPU is being changed for a job.
async fn ordered(
    session: &Session,
    gpu: &str,
    request: &LayoutRequest,
) -> Result<LayoutApplied, Failure> {
    let mut tries = 0;
    loop {
        match session.client.apply_layout(gpu, request).await {
            Err(ClientError::Refused(problem))
                if problem.kind.ends_with(":changing") && tries < TRIES_MAX =>
            {
                if tries == 0 {
                    session.remark(&format!("{}; waiting for that", problem.detail));
                }
                tries += 1;
            }
            other => return Ok(other?),
        }
    }
}

/// Waits for a plan's end, and says how it goes.
async fn follow(session: &Session, gpu: &str, plan: &str) -> Result<LayoutChange, Failure> {
    let mut last = None;
    loop {
        let change = session.client.layout_change(plan).await?;
        if change.ended_at.is_some() {
            return Ok(change);
        }
        let now = session.client.layout(gpu).await?;
        let done = change.steps.iter().filter(|step| is_done(step, &now)).count();
        if last != Some(done) && !session.json {
            let next = change.steps.iter().find(|step| !is_done(step, &now));
            let next = next.map(|step| format!(", now: {step}")).unwrap_or_default();
            session.remark(&format!("{done} of {} steps done{next}", change.steps.len()));
        }
        last = Some(done);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Tells from what stands whether a step such as `destroy 4g.20gb@0` is done.
fn is_done(step: &str, gpu: &Gpu) -> bool {
    let Some((verb, name)) = step.split_once(' ') else { return false };
    let stands = gpu.instances.iter().any(|instance| {
        instance.slice.is_some() && format!("{}@{}", instance.profile, instance.start) == name
    });
    if verb == "destroy" { !stands } else { stands }
}

fn told(gpu: &str, change: &LayoutChange) -> String {
    let took = change.ended_at.map(|end| (end - change.ordered_at).as_seconds_f64());
    let detail = change.detail.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    match (change.state.as_str(), took) {
        ("done", Some(took)) => format!("{gpu}: the layout stands ({took:.2} s)\n"),
        (state, _) => format!("{gpu}: the layout was not made, the plan is {state}{detail}\n"),
    }
}
