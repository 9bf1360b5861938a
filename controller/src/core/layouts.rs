//! Layouts that operators ask for: drafted, ordered as plans like any other, and carried to
//! their end over restarts of either side.

use std::collections::BTreeMap;

use tessera_model::mig::compute::{Cut, StandingCut};
use tessera_model::mig::{
    self, Cuts, Geometry, Hold, Layout, Occupant, Slot, Step, Tenant, Unarrangeable, Wanted,
};
use tessera_model::{GpuId, JobId, Millis, NodeId, PlanId};
use tessera_placement::{InstanceState, InstanceView, Seats};
use tessera_wire::frames::{GpuHealth, InstanceReport, MigReport};
use uuid::Uuid;

use super::operator::refused;
use super::placing::in_words;
use super::{Cluster, Gpu, Round};
use crate::ports::operator::{
    GpuOutlook, Kind, LayoutDraft, LayoutWish, OperatorDone, OperatorRefused, RefusedKind,
};
use crate::store::nodes::{Asked, PlanClosed, PlanRow};
use crate::store::operator::{Target, Word};

/// How long a wish waits for a change that is under way on its GPU: longer than a plan takes,
/// shorter than a client's patience.
const WISH_WAITS: Millis = Millis::from_secs(15);
/// Most wishes that wait at a time.
const WISHES_MAX: usize = 256;

/// A layout that an operator asked for and that is being made.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    asked: Asked,
    row: PlanRow,
}

/// A layout that waits until its GPU isn't being changed.
#[derive(Clone, Debug)]
pub(super) struct PendingWish {
    token: u64,
    wish: LayoutWish,
    until: Millis,
}

/// What a wished layout would take.
struct Draft {
    layout: Layout,
    cuts: Cuts,
    standing: BTreeMap<Slot, StandingCut>,
    steps: Vec<Step>,
}

impl Wish {
    /// Takes up again what was under way.
    pub(super) fn resume(open: crate::store::load::OpenWish) -> Self {
        Self { asked: open.asked, row: open.row }
    }

    /// Whether the instance is about to be destroyed or cut anew.
    pub(super) fn takes(&self, slot: Slot) -> bool {
        self.row.steps.iter().any(|step| match step {
            Step::Destroy(taken) | Step::Cut(taken, _) => *taken == slot,
            Step::Create(_) => false,
        })
    }

    /// Whether an instance is as this wish has it.
    fn is_met_by(&self, instance: &InstanceReport, geometry: &Geometry) -> bool {
        let cut = self.row.steps.iter().find_map(|step| match step {
            Step::Cut(slot, cut) if *slot == instance.slot => Some(*cut),
            Step::Cut(..) | Step::Create(_) | Step::Destroy(_) => None,
        });
        let stands = cut_of(instance, geometry);
        cut.map_or(!stands.is_empty(), |cut| cut == stands)
    }
}

impl Cluster {
    pub(super) fn note_wish(&mut self, token: u64, wish: LayoutWish, now: Millis) {
        let until = now.plus(WISH_WAITS);
        self.wishes.push(PendingWish { token, wish, until });
    }

    /// Whether a wish for the GPU's layout waits: then nothing new starts there.
    pub(super) fn is_wished(&self, gpu: &GpuId) -> bool {
        self.wishes.iter().any(|pending| pending.wish.gpu == *gpu)
    }

    /// Orders the wished layouts whose GPUs are free for it, and answers those that can't be.
    pub(super) fn order_wishes(
        &mut self,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        for pending in std::mem::take(&mut self.wishes) {
            let answer = self.order_wish(&pending.wish, mint, round);
            let changing = matches!(&answer, Err(refused) if refused.kind == RefusedKind::Changing);
            if changing && now < pending.until && self.wishes.len() < WISHES_MAX {
                self.wishes.push(pending);
                continue;
            }
            round.operated.push((pending.token, answer));
        }
    }

    fn order_wish(
        &mut self,
        wish: &LayoutWish,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) -> Result<OperatorDone, OperatorRefused> {
        if let Some(plan) = self.same_wish(wish)? {
            return Ok(OperatorDone::Ordered { plan });
        }
        let draft = self.draft(&wish.gpu, &wish.wanted)?;
        let asked = Asked {
            by: wish.by.clone(),
            reason: wish.reason.clone(),
            wanted: draft.layout.clone(),
            pin: wish.pin,
        };
        if draft.steps.is_empty() {
            self.pin(&wish.gpu, &asked, round);
            return Ok(OperatorDone::Stands);
        }
        let gpu = self.known(&wish.gpu)?;
        let MigReport::On { geometry } = &gpu.report.mig else {
            return Err(refused(RefusedKind::InTheWay, "MIG is off"));
        };
        let steps_text: Vec<_> = draft.steps.iter().map(|step| in_words(geometry, *step)).collect();
        let row = PlanRow {
            plan: PlanId::from_uuid(mint()),
            gpu: wish.gpu.clone(),
            node: gpu.node,
            layout_gen: gpu.layout_gen + 1,
            steps: draft.steps.clone(),
            steps_text,
            job: None,
            attempt: None,
            decision: None,
            asked: Some(asked.clone()),
        };
        let text = format!(
            "{} is to get the layout {}: {} ({})",
            self.gpu_name(gpu),
            draft.names(gpu),
            row.steps_text.join(", "),
            because(&asked),
        );
        let target = Target::Gpu(wish.gpu.clone());
        round.events.push(self.event("layout_ordered", &target, &asked.by, text));
        if let Some(gpu) = self.gpus.get_mut(&wish.gpu) {
            gpu.layout_gen = row.layout_gen;
            gpu.open_plan = Some(row.plan);
            gpu.wish = Some(Wish { asked, row: row.clone() });
        }
        let plan = row.plan;
        self.unsent_plans.push(row.clone());
        round.orders.push(row);
        Ok(OperatorDone::Ordered { plan })
    }

    /// Finds the plan that makes this very layout already: asking twice is asking once.
    fn same_wish(&self, wish: &LayoutWish) -> Result<Option<PlanId>, OperatorRefused> {
        let gpu = self.known(&wish.gpu)?;
        let (Some(open), MigReport::On { geometry }) = (&gpu.wish, &gpu.report.mig) else {
            return Ok(None);
        };
        let layout = &open.asked.wanted;
        let there: Vec<_> =
            layout.iter().map(|slot| Occupant { slot: *slot, busy: true }).collect();
        if wish.wanted.arrange(geometry, &there, |_| 0).as_ref() != Ok(layout) {
            return Ok(None);
        }
        let mut cuts: Cuts =
            gpu.report.instances.iter().map(|i| (i.slot, cut_of(i, geometry))).collect();
        for step in &open.row.steps {
            match step {
                Step::Cut(slot, cut) => cuts.insert(*slot, *cut),
                Step::Create(slot) => cuts.insert(*slot, whole(geometry, *slot)),
                Step::Destroy(slot) => cuts.remove(slot),
            };
        }
        // What is in use keeps its cut: then only the same one is possible.
        let kept = cuts.iter().map(|(slot, cut)| (*slot, StandingCut { cut: *cut, busy: *cut }));
        let same = wish.wanted.cuts(geometry, layout, &kept.collect()).is_ok();
        Ok(same.then_some(open.row.plan))
    }

    fn pin(&mut self, gpu: &GpuId, asked: &Asked, round: &mut Round) {
        if asked.pin {
            let (kind, target) = (Kind::Pinned, Target::Gpu(gpu.clone()));
            let (by, reason) = (asked.by.clone(), asked.reason.clone());
            self.say(Word { kind, target, by, reason, said_unix: self.now_unix }, round);
        }
    }

    /// Tells what a layout would take.
    ///
    /// # Errors
    ///
    /// What stands in the way, and what would be possible.
    pub fn draft_layout(
        &self,
        gpu: &GpuId,
        wanted: &Wanted,
    ) -> Result<LayoutDraft, OperatorRefused> {
        let draft = self.draft(gpu, wanted)?;
        let known = self.known(gpu)?;
        let MigReport::On { geometry } = &known.report.mig else {
            return Err(refused(RefusedKind::InTheWay, "MIG is off"));
        };
        let makes = |slot: &Slot| {
            let made = |step: &Step| !matches!(step, Step::Destroy(_)) && step.slot() == *slot;
            draft.steps.iter().any(made)
        };
        let name = |slot: &Slot| draft.name(known, *slot);
        Ok(LayoutDraft {
            layout: draft.layout.iter().map(name).collect(),
            kept: draft.layout.iter().filter(|slot| !makes(slot)).map(name).collect(),
            steps: draft.steps.iter().map(|step| in_words(geometry, *step)).collect(),
            cost: mig::predicted_over(geometry, &draft.standing, &draft.steps),
            reachability_after: u32::try_from(known.reach(&draft.layout)).ok(),
        })
    }

    fn draft(&self, id: &GpuId, wanted: &Wanted) -> Result<Draft, OperatorRefused> {
        let gpu = self.known(id)?;
        let geometry = self.changeable(gpu)?;
        let views = self.instances_of(gpu);
        let standing: Vec<_> = occupants(&views);
        let layout = wanted
            .arrange(geometry, &standing, |layout| gpu.reach(layout))
            .map_err(|problem| self.unarrangeable(gpu, geometry, &views, problem))?;
        let steps = mig::plan(geometry, &standing, &layout).map_err(|problem| {
            refused(RefusedKind::InTheWay, format!("{}: {problem}", self.gpu_name(gpu)))
        })?;
        let standing = standing_cuts(gpu, geometry, &standing);
        let cuts = wanted
            .cuts(geometry, &layout, &standing)
            .map_err(|problem| self.unarrangeable(gpu, geometry, &views, problem))?;
        let steps = mig::cut_steps(geometry, steps, &standing, &cuts);
        Ok(Draft { layout, cuts, standing, steps })
    }

    /// Returns the geometry of a GPU that can be changed now.
    fn changeable<'g>(&self, gpu: &'g Gpu) -> Result<&'g Geometry, OperatorRefused> {
        let name = self.gpu_name(gpu);
        let no = |why: String| refused(RefusedKind::InTheWay, format!("{name} {why}"));
        let MigReport::On { geometry } = &gpu.report.mig else {
            let expected = match gpu.report.mig {
                MigReport::Off => Some(format!(
                    "MIG mode to be on: tessera mig-mode {} on, while nothing runs there",
                    gpu.report.gpu
                )),
                MigReport::On { .. } | MigReport::Unsupported => None,
            };
            let why = match expected {
                Some(_) => "has MIG mode off: it can't be cut",
                None => "has no MIG: it can't be cut",
            };
            return Err(OperatorRefused { expected, ..no(why.to_owned()) });
        };
        if let Some(why) = gpu.unplannable() {
            let off = format!("MIG mode to be off: tessera mig-mode {} off", gpu.report.gpu);
            let refused = no(format!("can't be changed: {why}"));
            return Err(OperatorRefused { expected: Some(off), ..refused });
        }
        let there = self.nodes.get(&gpu.node).is_some_and(|node| {
            !node.lost && node.session.as_ref().is_some_and(|session| session.ready)
        });
        if !there || !gpu.fresh {
            return Err(no("can't be changed: its node is not connected".to_owned()));
        }
        match &gpu.report.health {
            GpuHealth::Healthy => {}
            GpuHealth::Unresponsive => {
                return Err(no("can't be changed: its driver doesn't answer".to_owned()));
            }
            GpuHealth::Faulty { reason } => {
                return Err(no(format!("can't be changed: it is faulty ({reason})")));
            }
        }
        if gpu.open_plan.is_some() || self.makes_a_place(gpu) {
            let for_whom = match self.placing_on(&gpu.report.gpu) {
                Some(job) => format!(" for job {job}"),
                None => String::new(),
            };
            return Err(OperatorRefused {
                expected: Some("another try when that has ended".to_owned()),
                ..refused(RefusedKind::Changing, format!("{name} is being changed{for_whom}"))
            });
        }
        Ok(geometry)
    }

    fn unarrangeable(
        &self,
        gpu: &Gpu,
        geometry: &Geometry,
        views: &[InstanceView],
        problem: Unarrangeable,
    ) -> OperatorRefused {
        let name = self.gpu_name(gpu);
        match problem {
            Unarrangeable::UnknownProfile { profile } => {
                let offered: Vec<_> =
                    geometry.profiles.iter().map(|p| p.name.to_string()).collect();
                OperatorRefused {
                    expected: Some(offered.join(", ")),
                    ..refused(RefusedKind::Impossible, format!("{name} offers no {profile}"))
                }
            }
            Unarrangeable::IllegalCut { .. } => OperatorRefused {
                expected: Some(
                    "compute instances such as 1c+2c.3g.20gb, which fit together".into(),
                ),
                ..refused(RefusedKind::Impossible, format!("{name}: {problem}"))
            },
            Unarrangeable::Illegal(problem) => {
                refused(RefusedKind::Impossible, format!("{name}: {problem}"))
            }
            Unarrangeable::NoRoom => OperatorRefused {
                expected: Some(format!("what the empty GPU can hold: {}", room(geometry, &[]))),
                ..refused(RefusedKind::Impossible, format!("{name}: {}", Unarrangeable::NoRoom))
            },
            Unarrangeable::TooMany => {
                refused(RefusedKind::Impossible, format!("{name}: {}", Unarrangeable::TooMany))
            }
            Unarrangeable::InTheWay { busy } => {
                let blockers: Vec<_> = busy.iter().map(|slot| said_of(gpu, views, *slot)).collect();
                let stay: Vec<_> = views.iter().filter(|view| view.state.busy()).collect();
                let kept: Vec<_> =
                    stay.iter().filter_map(|view| view.slot).map(|s| gpu.slot_name(s)).collect();
                let tenants: Vec<_> = stay.iter().filter_map(|view| view.slot).collect();
                OperatorRefused {
                    expected: Some(format!(
                        "a layout that keeps {}; beside it could be made {}",
                        kept.join(" and "),
                        room(geometry, &tenants),
                    )),
                    ..refused(
                        RefusedKind::InTheWay,
                        format!(
                            "the layout has no place for what must stay on {name}: {}",
                            blockers.join("; ")
                        ),
                    )
                }
            }
        }
    }

    /// Tells what can still be made of a GPU; `ends` says when jobs are expected to end.
    ///
    /// # Errors
    ///
    /// There is no such GPU, or it can't be cut.
    pub fn outlook(
        &self,
        gpu: &GpuId,
        ends: &BTreeMap<JobId, Millis>,
    ) -> Result<GpuOutlook, OperatorRefused> {
        let gpu = self.known(gpu)?;
        let MigReport::On { geometry } = &gpu.report.mig else {
            let name = self.gpu_name(gpu);
            return Err(refused(RefusedKind::InTheWay, format!("{name} is not partitioned")));
        };
        let views = self.instances_of(gpu);
        let tenants: Vec<_> = views
            .iter()
            .filter_map(|view| Some(Tenant { slot: view.slot?, hold: hold(&view.state, ends) }))
            .collect();
        let profiles = mig::outlook(geometry, &tenants)
            .map_err(|problem| refused(RefusedKind::InTheWay, problem.to_string()))?;
        let name = |id| geometry.profile(id).map_or_else(String::new, |p| p.name.to_string());
        let plain = geometry.plain();
        Ok(GpuOutlook {
            profiles: profiles
                .into_iter()
                .filter(|outlook| plain.contains(&outlook.profile))
                .map(|outlook| (name(outlook.profile), outlook))
                .collect(),
            names: views
                .iter()
                .filter_map(|view| Some((view.slot?, view)))
                .map(|(slot, view)| (slot, (gpu.slot_name(slot), jobs_of(&view.state))))
                .collect(),
        })
    }

    /// A plan of an operator came to its end.
    pub(super) fn wish_ended(
        &mut self,
        gpu: &GpuId,
        state: &'static str,
        detail: Option<&str>,
        round: &mut Round,
    ) {
        let Some(wish) = self.gpus.get_mut(gpu).and_then(|known| known.wish.take()) else { return };
        let Ok(known) = self.known(gpu) else { return };
        let name = self.gpu_name(known);
        let text = match detail {
            None => format!("{name} has the layout {}", names(known, &wish.asked.wanted)),
            Some(detail) => format!("the new layout of {name} came to nothing: {detail}"),
        };
        let target = Target::Gpu(gpu.clone());
        let kind = if state == "done" { "layout_done" } else { "layout_failed" };
        round.events.push(self.event(kind, &target, &wish.asked.by, text));
        if state == "done" {
            self.pin(gpu, &wish.asked, round);
        }
    }

    /// Goes on with a wish after a new session has told what stands: it is done, or the same
    /// plan is ordered once more, whose steps skip what is done (rule F15 names it by its number).
    ///
    /// Returns whether there is a wish.
    pub(super) fn resume_wish(&mut self, gpu: &GpuId, round: &mut Round) -> bool {
        let Some(known) = self.gpus.get_mut(gpu) else { return false };
        let Some(wish) = &known.wish else { return false };
        let MigReport::On { geometry } = &known.report.mig else { return false };
        let met = known.report.instances.iter().filter(|i| wish.is_met_by(i, geometry));
        let stands: Layout = met.map(|i| i.slot).collect();
        if stands != wish.asked.wanted || stands.len() != known.report.instances.len() {
            self.unsent_plans.push(wish.row.clone());
            return true;
        }
        if let Some(plan) = known.open_plan.take() {
            round.closed.push(PlanClosed { plan, state: "done", detail: None });
        }
        self.wish_ended(gpu, "done", None, round);
        true
    }

    /// Gives up the wishes on a node's GPUs.
    pub(super) fn give_up_wishes(&mut self, node: NodeId, why: &str, round: &mut Round) {
        let gpus: Vec<_> = self
            .gpus
            .iter()
            .filter(|(_, gpu)| gpu.node == node && gpu.wish.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in gpus {
            let Some(plan) = self.gpus.get_mut(&id).and_then(|gpu| gpu.open_plan.take()) else {
                continue;
            };
            let detail = Some(why.to_owned());
            round.closed.push(PlanClosed { plan, state: "failed", detail });
            self.wish_ended(&id, "failed", Some(why), round);
        }
    }
}

impl Gpu {
    /// Such as `2g.10gb@4`.
    pub(super) fn slot_name(&self, slot: Slot) -> String {
        let profile = match &self.report.mig {
            MigReport::On { geometry } => geometry.profile(slot.profile),
            MigReport::Off | MigReport::Unsupported => None,
        };
        match profile {
            Some(profile) => format!("{}@{}", profile.name, slot.start),
            None => format!("instance@{}", slot.start),
        }
    }

    /// Such as `1c+2c.3g.20gb@4`, of an instance that is cut so.
    fn cut_name(&self, slot: Slot, cut: Cut) -> String {
        let name = self.slot_name(slot);
        match &self.report.mig {
            MigReport::On { geometry } if !cut.is_empty() && cut != whole(geometry, slot) => {
                format!("{cut}.{name}")
            }
            MigReport::On { .. } | MigReport::Off | MigReport::Unsupported => name,
        }
    }

    /// What stands, in words.
    pub(super) fn layout_in_words(&self) -> String {
        names(self, &self.report.instances.iter().map(|i| i.slot).collect())
    }

    /// `R` of a layout, over the plain profiles.
    fn reach(&self, layout: &Layout) -> usize {
        let reach = |mig: &tessera_placement::MigView| mig.full_layouts(mig.all().state(layout)?);
        self.mig.as_deref().and_then(reach).unwrap_or(0)
    }
}

fn names(gpu: &Gpu, layout: &Layout) -> String {
    let cut = |slot: &Slot| gpu.report.instances.iter().find(|i| i.slot == *slot).map(|i| i.cut());
    let name = |slot: &Slot| gpu.cut_name(*slot, cut(slot).unwrap_or_default());
    let names: Vec<_> = layout.iter().map(name).collect();
    if names.is_empty() { "empty".to_owned() } else { names.join(",") }
}

impl Draft {
    fn name(&self, gpu: &Gpu, slot: Slot) -> String {
        gpu.cut_name(slot, self.cuts.get(&slot).copied().unwrap_or_default())
    }

    fn names(&self, gpu: &Gpu) -> String {
        let names: Vec<_> = self.layout.iter().map(|slot| self.name(gpu, *slot)).collect();
        if names.is_empty() { "empty".to_owned() } else { names.join(",") }
    }
}

fn whole(geometry: &Geometry, slot: Slot) -> Cut {
    let slices = geometry.profile(slot.profile).map_or(0, |profile| profile.compute_slices);
    Cut::whole(slices).unwrap_or_default()
}

/// Returns the compute instances of an instance that stands; none of one that is half made.
fn cut_of(instance: &InstanceReport, geometry: &Geometry) -> Cut {
    match instance.slice {
        Some(_) => whole(geometry, instance.slot),
        None => instance.cut(),
    }
}

fn standing_cuts(
    gpu: &Gpu,
    geometry: &Geometry,
    occupants: &[Occupant],
) -> BTreeMap<Slot, StandingCut> {
    let busy = |slot: Slot| occupants.iter().any(|o| o.slot == slot && o.busy);
    let standing = |instance: &InstanceReport| {
        let cut = cut_of(instance, geometry);
        let busy = if busy(instance.slot) { cut } else { Cut::default() };
        (instance.slot, StandingCut { cut, busy })
    };
    gpu.report.instances.iter().map(standing).collect()
}

fn because(asked: &Asked) -> String {
    match &asked.reason {
        Some(reason) => format!("{reason}, by {}", asked.by),
        None => format!("by {}", asked.by),
    }
}

fn occupants(views: &[InstanceView]) -> Vec<Occupant> {
    let busy = |state: &InstanceState| match state {
        // Operators cut them, and may do so again while nobody sits there.
        InstanceState::Cut(seats) => seats.tenancy.is_some(),
        state => state.busy(),
    };
    let occupant =
        |view: &InstanceView| Some(Occupant { slot: view.slot?, busy: busy(&view.state) });
    views.iter().filter_map(occupant).collect()
}

fn jobs_of(state: &InstanceState) -> Vec<JobId> {
    match state {
        InstanceState::Taken { job } => vec![*job],
        InstanceState::Shared(tenancy) => tenancy.sharers.iter().map(|(job, _)| *job).collect(),
        InstanceState::Cut(seats) => seats.taken().map(|(job, _)| job).collect(),
        _ => Vec::new(),
    }
}

fn hold(state: &InstanceState, ends: &BTreeMap<JobId, Millis>) -> Hold {
    match state {
        InstanceState::Idle => Hold::Idle,
        InstanceState::Taken { job } => Hold::Busy { until: ends.get(job).copied() },
        InstanceState::Cut(Seats { tenancy: None, .. }) => Hold::Idle,
        InstanceState::Shared(tenancy)
        | InstanceState::Cut(Seats { tenancy: Some(tenancy), .. }) => {
            // Free when the last of them has ended; unknown if one has no limit.
            let all = tenancy.sharers.iter().map(|(job, _)| ends.get(job).copied());
            let until: Option<Vec<_>> = all.collect();
            Hold::Busy { until: until.and_then(|ends| ends.into_iter().max()) }
        }
        InstanceState::Foreign | InstanceState::Leaving => Hold::Busy { until: None },
        InstanceState::Stuck | InstanceState::Quarantined => Hold::Stuck,
    }
}

/// Says why an instance must stay.
fn said_of(gpu: &Gpu, views: &[InstanceView], slot: Slot) -> String {
    let name = gpu.slot_name(slot);
    let state = views.iter().find(|view| view.slot == Some(slot)).map(|view| &view.state);
    match state {
        Some(InstanceState::Foreign) => format!("{name} is in use by processes of others"),
        Some(InstanceState::Stuck) => format!("{name} is stuck"),
        Some(InstanceState::Quarantined) => format!("{name} is quarantined"),
        Some(InstanceState::Leaving) => format!("{name} is being destroyed"),
        Some(state) => {
            let jobs: Vec<_> = jobs_of(state).iter().map(ToString::to_string).collect();
            format!("{name} is in use by job {}", jobs.join(", "))
        }
        None => name,
    }
}

/// Says how many instances of each profile fit beside others.
fn room(geometry: &Geometry, standing: &[Slot]) -> String {
    let tenants: Vec<_> =
        standing.iter().map(|slot| Tenant { slot: *slot, hold: Hold::Stuck }).collect();
    let plain = geometry.plain();
    let fits: Vec<_> = mig::outlook(geometry, &tenants)
        .unwrap_or_default()
        .into_iter()
        .filter(|outlook| outlook.now > 0 && plain.contains(&outlook.profile))
        .filter_map(|outlook| {
            let name = &geometry.profile(outlook.profile)?.name;
            Some(format!("{}x {name}", outlook.now))
        })
        .collect();
    if fits.is_empty() { "nothing more".to_owned() } else { fits.join(" or ") }
}
