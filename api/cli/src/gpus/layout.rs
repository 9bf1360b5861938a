//! `tessera gpus layout`: shows, previews and applies layouts, and shows what still fits.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{UuidDisplay, draw, names};
use crate::failure::CommandFailure;
use crate::operator::print_result;
use crate::session::{CommandSession, moment, table};
use tessera_api_types::{
    GpuAvailabilityView, GpuDetails, GpuListing, LayoutApplied, LayoutPlan, LayoutRequest,
    OperatorRequest, PlanPreviewView,
};
use tessera_client::{ClientError, OperatorVerb};

/// How often progress is read.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often a request is repeated while another plan for the GPU is running. The controller holds
/// each request for up to 15 seconds.
const TRIES_MAX: u32 = 20;

/// Shows and changes layouts by hand.
#[derive(Args)]
pub struct LayoutArgs {
    #[command(subcommand)]
    verb: LayoutVerb,
}

#[derive(Subcommand)]
enum LayoutVerb {
    /// Draw a GPU's layout: jobs, idle instances, stuck instances
    Show(OneGpu),
    /// Preview the steps that lead to a layout and their duration; change nothing
    Plan(PlanLayout),
    /// Apply a layout to a GPU; instances in use are kept
    Apply(ApplyLayout),
    /// Show which instances can still be created, and which jobs must end for others
    Availability(OneGpu),
    /// Pin a GPU's layout: jobs use its slices and do not change it
    Pin(PinLayout),
    /// Unpin a GPU's layout: it follows the jobs again
    Unpin(OneGpu),
}

#[derive(Args)]
struct OneGpu {
    /// node-a:0, or a GPU's UUID or a prefix of it
    #[arg(value_name = "GPU")]
    gpu: String,
}

#[derive(Args)]
struct PinLayout {
    /// node-a:0, or a GPU's UUID or a prefix of it
    #[arg(value_name = "GPU")]
    gpu: String,
    /// The reason, shown to users
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args)]
struct PlanLayout {
    /// node-a:0, or a GPU's UUID or a prefix of it
    #[arg(value_name = "GPU")]
    gpu: String,
    /// All instances of the layout: 3g.20gb,2x1g.5gb,2g.10gb@4, or empty. 1c+2c.3g.20gb is one GPU
    /// instance with several compute instances
    #[arg(value_name = "LAYOUT")]
    layout: String,
}

#[derive(Args)]
struct ApplyLayout {
    #[command(flatten)]
    what: PlanLayout,
    /// Pin it: jobs then use its slices and do not change it
    #[arg(long)]
    pin: bool,
    /// The reason, shown to users
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Return when the plan is committed, without waiting for its end
    #[arg(long)]
    no_wait: bool,
}

impl LayoutArgs {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.verb {
            LayoutVerb::Show(OneGpu { gpu }) => show(session, &gpu).await,
            LayoutVerb::Plan(PlanLayout { gpu, layout }) => {
                let plan = session.client.plan_layout(&gpu, &layout).await?;
                session.print(&plan, draw_plan)?;
                Ok(0)
            }
            LayoutVerb::Apply(verb) => verb.run(session).await,
            LayoutVerb::Availability(OneGpu { gpu }) => {
                let availability = session.client.layout_availability(&gpu).await?;
                session.print(&availability, draw_availability)?;
                Ok(0)
            }
            LayoutVerb::Pin(PinLayout { gpu, reason }) => {
                pin(session, &gpu, OperatorVerb::Pin, reason).await
            }
            LayoutVerb::Unpin(OneGpu { gpu }) => {
                pin(session, &gpu, OperatorVerb::Unpin, None).await
            }
        }
    }
}

async fn show(session: &CommandSession, gpu: &str) -> Result<u8, CommandFailure> {
    let gpu = session.client.layout(gpu).await?;
    let gpus = GpuListing { items: vec![gpu] };
    let names = if session.json { super::JobNames::new() } else { names(session, &gpus).await? };
    session.print(&gpus.items[0], |_| draw(&gpus, UuidDisplay::Shown, &names, session.screen))?;
    Ok(0)
}

async fn pin(
    session: &CommandSession,
    gpu: &str,
    verb: OperatorVerb,
    reason: Option<String>,
) -> Result<u8, CommandFailure> {
    let request = OperatorRequest { reason, ..OperatorRequest::default() };
    let result = session.client.send_to_gpu(gpu, verb, &request).await?;
    let text = match (verb, result.changed) {
        (OperatorVerb::Pin, true) => "is pinned: jobs use its slices and do not change them",
        (OperatorVerb::Pin, false) => "was already pinned",
        (_, true) => "is unpinned: its layout follows the jobs",
        (_, false) => "was not pinned",
    };
    print_result(session, &result, &format!("{gpu} {text}"))
}

fn draw_plan(plan: &PlanPreviewView) -> String {
    let layout = if plan.layout.is_empty() { "nothing".to_owned() } else { plan.layout.join(", ") };
    let mut text = format!("{}:{} would have {layout}\n", plan.node, plan.index);
    if plan.steps.is_empty() {
        text.push_str("The layout exists already: there is nothing to do.\n");
        return text;
    }
    for (number, step) in (1..).zip(&plan.steps) {
        let _ = writeln!(text, "  {number}. {step}");
    }
    let kept = match plan.kept.is_empty() {
        true => String::new(),
        false => format!("; kept: {}", plan.kept.join(", ")),
    };
    let _ = writeln!(text, "expected to take {:.2} s{kept}", plan.predicted_secs);
    if let Some(count) = plan.reachability_after {
        let layouts = if count == 1 { "full layout stays" } else { "full layouts stay" };
        let _ = writeln!(text, "{count} {layouts} reachable afterwards");
    }
    text
}

fn draw_availability(gpu: &GpuAvailabilityView) -> String {
    let rows = gpu.profiles.iter().map(|profile| {
        vec![
            profile.profile.clone(),
            profile.now.to_string(),
            profile.after_idle.to_string(),
            profile.ready_at.map_or_else(|| "-".to_owned(), moment),
            profile.text.clone(),
        ]
    });
    let header = ["PROFILE", "NOW", "WITHOUT IDLE", "FREE BY", "NEEDS"];
    format!("{}:{}\n{}", gpu.node, gpu.index, table(Some(&header), rows))
}

impl ApplyLayout {
    async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let gpu = &self.what.gpu;
        let request = LayoutRequest {
            layout: self.what.layout.clone(),
            pin: self.pin,
            by: String::new(),
            reason: self.reason.clone(),
        };
        let applied = request_layout(session, gpu, &request).await?;
        let Some(plan) = applied.plan.clone().filter(|_| !self.no_wait) else {
            session.print(&applied, |applied| match applied.plan.as_deref() {
                Some(plan) => format!("{gpu}: the layout is planned ({plan})\n"),
                None => format!("{gpu}: the layout exists already\n"),
            })?;
            return Ok(0);
        };
        let change = follow_plan(session, &applied.gpu, &plan).await?;
        let code = u8::from(change.state != "done");
        session.print(&change, |change| describe_outcome(gpu, change))?;
        Ok(code)
    }
}

/// Requests a layout; repeats the request while another plan for the GPU is running.
async fn request_layout(
    session: &CommandSession,
    gpu: &str,
    request: &LayoutRequest,
) -> Result<LayoutApplied, CommandFailure> {
    let mut tries = 0;
    loop {
        match session.client.apply_layout(gpu, request).await {
            Err(ClientError::Refused(problem))
                if problem.kind.ends_with(":changing") && tries < TRIES_MAX =>
            {
                if tries == 0 {
                    session.remark(&format!("{}; waiting for it to end", problem.detail));
                }
                tries += 1;
            }
            other => return Ok(other?),
        }
    }
}

/// Waits for a plan's end, and prints its progress.
async fn follow_plan(
    session: &CommandSession,
    gpu: &str,
    plan: &str,
) -> Result<LayoutPlan, CommandFailure> {
    let mut last = None;
    loop {
        let change = session.client.layout_plan(plan).await?;
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

/// Returns whether a step such as `destroy 4g.20gb@0` is done, by the existing instances.
fn is_done(step: &str, gpu: &GpuDetails) -> bool {
    let Some((verb, name)) = step.split_once(' ') else { return false };
    let exists = gpu.instances.iter().any(|instance| {
        instance.slice.is_some() && format!("{}@{}", instance.profile, instance.start) == name
    });
    if verb == "destroy" { !exists } else { exists }
}

fn describe_outcome(gpu: &str, change: &LayoutPlan) -> String {
    let took = change.ended_at.map(|end| (end - change.planned_at).as_seconds_f64());
    let detail = change.detail.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
    match (change.state.as_str(), took) {
        ("done", Some(took)) => format!("{gpu}: the layout is in place ({took:.2} s)\n"),
        (state, _) => format!("{gpu}: the layout was not created, the plan is {state}{detail}\n"),
    }
}
