//! `tessera mig check`: legality steps, run in order on an empty GPU.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;

use clap::Args;
use serde::Deserialize;
use tessera_model::mig::catalog::GpuModel;
use tessera_model::mig::compute::{ComputeSlot, Cut, IllegalCut, check_cut};
use tessera_model::mig::{Geometry, IllegalLayout, Layout, MigState, Profile, Slot, StateSpace};

use super::views::{CaseReport, LegalityReport, SlotView, StepReport};
use crate::failure::CommandFailure;
use crate::session::{OutputScreen, print, table};

/// Largest file of steps; a larger one is not a file of steps.
const FILE_MAX: u64 = 16 * 1024 * 1024;

const HEADER: &[&str] = &["STEP", "PROFILE", "START", "LEGALITY", "RESULT", "REASON"];

/// The formats of a file.
const SHAPE: &str = concat!(
    r#"[{"profile": "1g.5gb", "start": 6, "ok": true}], or {"steps": [...]}, "#,
    r#"or {"cases": [{"gpu": "a100-40gb", "steps": [...]}]}"#,
);

#[derive(Args)]
pub struct CheckArgs {
    /// A GPU model, such as a100-40gb
    #[arg(value_name = "MODEL")]
    model: String,
    /// A file of steps ([{"profile": "1g.5gb", "start": 6, "ok": true}, …]), of one case with
    /// "steps", or of "cases"; - reads standard input. A step with "within" makes a compute
    /// instance in the GPU instance that starts there
    #[arg(value_name = "STEPS.json")]
    file: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CaseFile {
    Cases { cases: Vec<LegalityCase> },
    Case(LegalityCase),
    Steps(Vec<LegalityStep>),
}

#[derive(Deserialize)]
struct LegalityCase {
    #[serde(default)]
    id: Option<String>,
    /// The model that it is for; any if absent.
    #[serde(default)]
    gpu: Option<String>,
    #[serde(default)]
    what: Option<String>,
    steps: Vec<LegalityStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LegalityStep {
    profile: String,
    /// Any if absent.
    #[serde(default)]
    start: Option<u8>,
    /// For a compute instance: where its GPU instance starts.
    #[serde(default)]
    within: Option<u8>,
    #[serde(default = "legal")]
    ok: bool,
}

const fn legal() -> bool {
    true
}

impl CheckArgs {
    pub fn run(&self, json: bool) -> Result<u8, CommandFailure> {
        let model = super::model(&self.model)?;
        let cases = self.read()?;
        let mine = |case: &&LegalityCase| case.gpu.as_ref().is_none_or(|gpu| *gpu == model.key);
        let (all, geometry) = (cases.len(), model.geometry());
        let run = cases.iter().filter(mine).zip(1..).map(|(case, n)| go(model, case, n));
        let cases = run.collect::<Result<Vec<CaseReport>, CommandFailure>>()?;
        if cases.is_empty() {
            let file = &self.file;
            return Err(CommandFailure::usage(format!("{file} holds no case for {}", model.key)));
        }
        let skipped = (all - cases.len()) as u64;
        let ok = cases.iter().all(|case| case.ok);
        let report = LegalityReport { model: model.key.clone(), ok, cases, skipped };
        let screen = OutputScreen::of_stdout();
        print(json, &report, |report| describe_report(report, &geometry, screen))?;
        Ok(u8::from(!ok))
    }

    fn read(&self) -> Result<Vec<LegalityCase>, CommandFailure> {
        let unreadable =
            |cause| CommandFailure::usage(format!("{} can't be read: {cause}", self.file));
        let mut text = String::new();
        match self.file.as_str() {
            "-" => std::io::stdin().take(FILE_MAX).read_to_string(&mut text),
            path => {
                fs::File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text))
            }
        }
        .map_err(unreadable)?;
        let parsed = serde_json::from_str(&text).map_err(|cause| {
            CommandFailure::usage(format!("{}: {cause}; expected {SHAPE}", self.file))
        })?;
        Ok(match parsed {
            CaseFile::Cases { cases } => cases,
            CaseFile::Case(case) => vec![case],
            CaseFile::Steps(steps) => vec![LegalityCase { id: None, gpu: None, what: None, steps }],
        })
    }
}

/// Runs one case on an empty GPU.
fn go(model: &GpuModel, case: &LegalityCase, number: usize) -> Result<CaseReport, CommandFailure> {
    let geometry = &model.geometry();
    let space = StateSpace::new(geometry, None).map_err(CommandFailure::refused)?;
    let mut state = MigState::EMPTY;
    let mut cuts = InstanceCuts::new();
    let mut steps = Vec::new();
    for step in &case.steps {
        if let Some(within) = step.within {
            let made = compute(model, &space.layout(state), &mut cuts, within, step);
            steps.push(step_report(step, made));
            continue;
        }
        let name = step.profile.parse().ok();
        let profile = name.and_then(|name| geometry.by_name(&name)).ok_or_else(|| {
            let has: Vec<_> = geometry.profiles.iter().map(|p| p.name.as_str()).collect();
            let has = has.join(", ");
            CommandFailure::usage(format!(
                "this GPU has no profile {:?}; its profiles are {has}",
                step.profile
            ))
        })?;
        let made = allocate(geometry, &space, state, profile, step.start);
        let made = made.map(|(slot, next)| {
            state = next;
            slot.start
        });
        steps.push(step_report(step, made));
    }
    Ok(CaseReport {
        id: case.id.clone().unwrap_or_else(|| number.to_string()),
        what: case.what.clone(),
        ok: steps.iter().all(StepReport::is_expected),
        steps,
        layout: SlotView::all(geometry, &space.layout(state)),
    })
}

/// The compute instances of each GPU instance that has some.
type InstanceCuts = BTreeMap<Slot, Cut>;

/// Why the instance of a step can't be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum StepRefusal {
    #[error("no GPU instance starts on memory slice {within}")]
    NoInstance { within: u8 },
    #[error("the GPU instance's profile is not known")]
    UnknownProfile,
    #[error("{instance} has no compute instance {profile:?}; it has {offered}")]
    NoComputeProfile { instance: String, profile: String, offered: String },
    #[error("compute slice {start} is claimed twice")]
    ClaimedTwice { start: u8 },
    #[error(transparent)]
    Cut(#[from] IllegalCut),
    #[error(transparent)]
    Layout(#[from] IllegalLayout),
    /// One reason for each start; none if the profile has no start.
    #[error("{}", list_reasons(.0))]
    NoStart(Vec<IllegalLayout>),
}

/// Lists each reason once.
fn list_reasons(illegal: &[IllegalLayout]) -> String {
    let mut reasons: Vec<String> = Vec::new();
    for illegal in illegal {
        let reason = match illegal {
            IllegalLayout::Overlap { .. } => "other instances exist at every start".to_owned(),
            other => other.to_string(),
        };
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons.join("; or ")
}

fn step_report(step: &LegalityStep, made: Result<u8, StepRefusal>) -> StepReport {
    StepReport {
        profile: step.profile.clone(),
        start: step.start,
        within: step.within,
        expected: step.ok,
        legal: made.is_ok(),
        placed_at: made.as_ref().ok().copied(),
        reason: made.err().map(|refusal| refusal.to_string()),
    }
}

/// Adds a compute instance to the GPU instance that starts on `within`; without a start, at the
/// lowest free one.
fn compute(
    model: &GpuModel,
    layout: &Layout,
    cuts: &mut InstanceCuts,
    within: u8,
    step: &LegalityStep,
) -> Result<u8, StepRefusal> {
    let slot = layout.iter().find(|slot| slot.start == within);
    let slot = slot.ok_or(StepRefusal::NoInstance { within })?;
    let gpu = model.profiles.iter().find(|p| p.profile.id == slot.profile);
    let gpu = gpu.ok_or(StepRefusal::UnknownProfile)?;
    let named = gpu.compute.iter().find(|p| p.name == step.profile).ok_or_else(|| {
        let offered: Vec<_> = gpu.compute.iter().map(|p| p.name.as_str()).collect();
        StepRefusal::NoComputeProfile {
            instance: gpu.profile.name.to_string(),
            profile: step.profile.clone(),
            offered: offered.join(", "),
        }
    })?;
    let cut = cuts.entry(*slot).or_default();
    let mut refused = StepRefusal::NoStart(Vec::new());
    for start in step.start.map_or_else(|| named.starts.clone(), |start| vec![start]) {
        let part = ComputeSlot { start, slices: named.compute_slices };
        let mut next = *cut;
        let new = next.insert(part);
        match check_cut(gpu.profile.compute_slices, &next) {
            Ok(()) if new => {
                *cut = next;
                return Ok(start);
            }
            Ok(()) => refused = StepRefusal::ClaimedTwice { start },
            Err(illegal) => refused = illegal.into(),
        }
    }
    Err(refused)
}

/// Allocates an instance; without a start, by the allocation rule.
fn allocate(
    geometry: &Geometry,
    space: &StateSpace,
    state: MigState,
    profile: &Profile,
    start: Option<u8>,
) -> Result<(Slot, MigState), StepRefusal> {
    let at = |start: u8| Slot { start, profile: profile.id };
    let slot = match start {
        Some(start) => Some(at(start)),
        None => space.best_placement(state, profile.id).map(|(slot, _)| slot),
    };
    if let Some((slot, next)) = slot.and_then(|slot| Some((slot, space.allocate(state, slot)?))) {
        return Ok((slot, next));
    }
    let standing: Layout = space.layout(state);
    let why = |start: u8| geometry.check(standing.iter().chain([&at(start)])).err();
    Err(match start.and_then(why) {
        Some(illegal) => illegal.into(),
        None if start.is_some() => StepRefusal::NoStart(Vec::new()),
        None => StepRefusal::NoStart(profile.starts.iter().copied().filter_map(why).collect()),
    })
}

fn describe_report(report: &LegalityReport, geometry: &Geometry, screen: OutputScreen) -> String {
    let mut text = String::new();
    for case in &report.cases {
        let what = case.what.as_ref().map(|what| format!(": {what}")).unwrap_or_default();
        text.push_str(&screen.paint("1", &format!("case {}{what}", case.id)));
        text.push('\n');
        text.push_str(&table(Some(HEADER), rows(case)));
        let slot = |view: &SlotView| {
            let profile = geometry.by_name(&view.profile.parse().ok()?)?.id;
            Some(Slot { start: view.start, profile })
        };
        let layout: Layout = case.layout.iter().filter_map(slot).collect();
        text.push_str(&super::bar(geometry, &layout, screen));
    }
    let good = report.cases.iter().filter(|case| case.ok).count();
    let skipped = match report.skipped {
        0 => String::new(),
        more => format!("; {more} for other GPUs left out"),
    };
    text.push_str(&format!("{good} of {} cases as expected{skipped}\n", report.cases.len()));
    text
}

fn rows(case: &CaseReport) -> Vec<Vec<String>> {
    let row = |(step, number): (&StepReport, usize)| {
        let start = step.start.or(step.placed_at);
        vec![
            number.to_string(),
            match step.within {
                Some(within) => format!("{} in the instance at {within}", step.profile),
                None => step.profile.clone(),
            },
            start.map_or_else(|| "any".to_owned(), |start| start.to_string()),
            if step.legal { "legal" } else { "illegal" }.to_owned(),
            if step.is_expected() { "as expected" } else { "NOT AS EXPECTED" }.to_owned(),
            step.reason.clone().unwrap_or_default(),
        ]
    };
    case.steps.iter().zip(1..).map(row).collect()
}
