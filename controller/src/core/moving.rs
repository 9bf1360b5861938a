//! Running jobs that move: a policy's [`Reshape`] carried out, and what it costs.
//!
//! Places are kept for those who are to sit there, then each job that has to leave its slice is
//! asked to put its work aside by its checkpoint signal, and its end is waited for; as slots become
//! free their jobs are reserved them like any others, and the layout follows from that. Nothing of
//! it is in the store but the asking: if the leader dies, those who were asked end as pre-empted
//! and wait, those who weren't run on, and the next leader's policy decides anew. So a crash at any
//! point costs a move, never a job.
//!
//! A job that doesn't end in time keeps its place for as long as it runs (its node kills it after
//! its grace, which costs it no retry), and is not asked again for a while.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::life::{JobState, Outcome};
use tessera_model::mig::{Geometry, Slot};
use tessera_model::{AttemptId, DecisionId, GpuId, JobId, Millis};
use tessera_placement::{
    ClusterView, Estimator as _, Explanation, InstanceState, InstanceView, Place, Reshape,
    SliceKind, Stayers, could_hold,
};
use tessera_wire::frames::{ExitRecord, MigReport};
use uuid::Uuid;

use super::placing::steps_to;
use super::view::slice_at;
use super::{Cluster, Live, Round};
use crate::store::moves::Moving as MovingRow;

/// How long after its grace a job that was asked to move may take to be heard of: an agent that is
/// restarted, a connection that breaks.
const MOVE_SLACK: Millis = Millis::from_secs(30);
/// How long a job that didn't come to its end in time is left in peace.
const RELUCTANT_FOR: Millis = Millis::from_secs(600);
/// What a move is taken to cost a job of which no move was seen: writing its work down, the cut,
/// and reading it again. MISO's controllers were measured at 30 s.
pub(super) const MOVE_COST: Millis = Millis::from_secs(30);
/// How long a job runs at least before it is moved (again), if nothing else is said: many times
/// what a move costs, so that moves take a small part of anybody's time.
pub(super) const MOVE_REST: Millis = Millis::from_secs(300);
/// Most GPUs that are reseated at a time.
const RESEATS_MAX: usize = 64;

/// What is being moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Moving {
    asked: BTreeMap<AttemptId, Asked>,
    reseats: BTreeMap<GpuId, Reseat>,
    /// Jobs that did not end in time, and until when they are left in peace.
    reluctant: BTreeMap<JobId, Millis>,
    /// Jobs that put their work aside and don't run again yet, and since when.
    underway: BTreeMap<JobId, Millis>,
}

/// An attempt that is to put its work aside.
#[derive(Clone, Copy, Debug)]
struct Asked {
    since: Millis,
    until: Millis,
}

/// Places that are kept on one GPU.
#[derive(Clone, Debug)]
struct Reseat {
    seats: Vec<(JobId, Slot)>,
    until: Millis,
    why: Explanation,
}

impl Moving {
    /// Whether an attempt is asked to put its work aside.
    pub(super) fn asks(&self, attempt: AttemptId) -> bool {
        self.asked.contains_key(&attempt)
    }

    /// Whether a place is kept for the job.
    pub(super) fn promised(&self, job: JobId) -> bool {
        self.reseats.values().any(|reseat| reseat.seats.iter().any(|(seated, _)| *seated == job))
    }

    /// Those for whom places are kept.
    pub(super) fn waiting(&self) -> Vec<JobId> {
        self.reseats.values().flat_map(|reseat| reseat.seats.iter().map(|(job, _)| *job)).collect()
    }

    /// The first job that a place is kept for on the GPU.
    pub(super) fn first_on(&self, gpu: &GpuId) -> Option<JobId> {
        self.reseats.get(gpu)?.seats.first().map(|(job, _)| *job)
    }

    fn place_of(&self, job: JobId) -> Option<(&GpuId, Slot, Millis)> {
        self.reseats.iter().find_map(|(gpu, reseat)| {
            let seat = reseat.seats.iter().find(|(seated, _)| *seated == job)?;
            Some((gpu, seat.1, reseat.until))
        })
    }

    /// Nobody takes what is kept for somebody.
    pub(super) fn close(&self, gpu: &GpuId, views: &mut [InstanceView]) {
        let Some(job) = self.first_on(gpu) else { return };
        for view in views.iter_mut().filter(|view| view.state == InstanceState::Idle) {
            view.state = InstanceState::Taken { job };
        }
    }

    /// Whether some job did not end in time.
    #[cfg(test)]
    pub(super) fn gave_up(&self) -> bool {
        !self.reluctant.is_empty()
    }

    /// Takes in an end; tells whether the attempt ended because it was asked to.
    pub(super) fn ended(&mut self, job: JobId, attempt: AttemptId, record: &ExitRecord) -> bool {
        self.underway.remove(&job);
        let Some(asked) = self.asked.remove(&attempt) else { return false };
        let moves = record.outcome == Outcome::Preempted;
        if moves {
            self.underway.insert(job, asked.since);
        }
        moves
    }
}

/// A reshape that may be carried out: who has to leave, and who is to sit where.
#[derive(Clone, Debug)]
struct Sound {
    gpu: GpuId,
    /// Those who aren't there yet.
    seats: Vec<(JobId, Slot)>,
    leaving: BTreeSet<AttemptId>,
    why: Explanation,
}

impl Cluster {
    /// Whether a running job may be asked to move: it says how it puts its work aside, has its
    /// slice to itself, and its node has it.
    pub(super) fn may_move(&self, attempt: AttemptId, now: Millis) -> bool {
        self.live.get(&attempt).is_some_and(|live| {
            let says_how = live.sheet.as_ref().is_some_and(|s| s.spec.checkpoint_signal.is_some());
            let left_alone = self.moving.reluctant.get(&live.job).is_some_and(|at| now < *at);
            live.state == JobState::Running
                && live.acknowledged
                && live.share.is_none()
                && live.gang.is_none()
                && live.slot.is_some()
                && says_how
                && !left_alone
                && !self.moving.asks(attempt)
        })
    }

    /// Begins to carry out what a policy wants reshaped; what can't be done is dropped, whole.
    pub(super) fn reshape(
        &mut self,
        wanted: Vec<(Reshape, Explanation)>,
        view: &ClusterView,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let sound = self.sound(wanted, view, now);
        let leaving = sound.iter().flat_map(|sound| &sound.leaving);
        let grace = leaving.filter_map(|attempt| Some(self.live.get(attempt)?.facts.grace)).max();
        // Those who stay on a GPU may wait for one who leaves it for another.
        let until = now.plus(grace.unwrap_or_default()).plus(MOVE_SLACK);
        for sound in sound {
            for attempt in &sound.leaving {
                self.ask_to_move(*attempt, until, &sound, now, mint, round);
            }
            let Sound { gpu, seats, why, .. } = sound;
            if !seats.is_empty() {
                self.moving.reseats.insert(gpu, Reseat { seats, until, why });
            }
        }
        self.seat(now, mint, round);
    }

    /// Keeps the reshapes that can be carried out. Whoever leaves a GPU has to be seated
    /// somewhere: so one that falls may let others fall.
    fn sound(
        &self,
        wanted: Vec<(Reshape, Explanation)>,
        view: &ClusterView,
        now: Millis,
    ) -> Vec<Sound> {
        let room = RESEATS_MAX.saturating_sub(self.moving.reseats.len());
        let mut left: Vec<_> = wanted.into_iter().take(room).collect();
        loop {
            let mut seated = BTreeSet::new();
            let once = left.iter().flat_map(|(reshape, _)| &reshape.seats);
            let once = once.map(|seat| seat.job).all(|job| seated.insert(job));
            let mut gpus = BTreeSet::new();
            if !once || !left.iter().all(|(reshape, _)| gpus.insert(reshape.gpu.clone())) {
                return Vec::new();
            }
            let before = left.len();
            let mut sound = Vec::new();
            left.retain(|(reshape, why)| {
                let found = self.sound_one(reshape, why, &seated, view, now);
                let is_sound = found.is_some();
                sound.extend(found);
                is_sound
            });
            if left.len() == before {
                return sound;
            }
        }
    }

    fn sound_one(
        &self,
        reshape: &Reshape,
        why: &Explanation,
        seated: &BTreeSet<JobId>,
        view: &ClusterView,
        now: Millis,
    ) -> Option<Sound> {
        let id = &reshape.gpu;
        let open = view.gpus.iter().find(|view| view.id == *id)?;
        let quiet = open.available && !open.changing && open.operator.pinned.is_none();
        let whole = reshape.trial.is_none() && reshape.stayers == Stayers::RunOn;
        if !quiet || !whole || self.moving.reseats.contains_key(id) {
            return None;
        }
        let geometry = self.legal(reshape)?;
        let (mut seats, mut leaving) = (Vec::new(), BTreeSet::new());
        for seat in &reshape.seats {
            let slot = seat.slot.filter(|_| !seat.shares())?;
            let Some(attempt) = self.attempts.get(&seat.job) else {
                self.suits(seat.job, id, slot)?;
                seats.push((seat.job, slot));
                continue;
            };
            let live = self.live.get(attempt)?;
            if live.gpu == *id && live.slot == Some(slot) {
                continue;
            }
            if !self.may_move(*attempt, now) {
                return None;
            }
            self.suits(seat.job, id, slot)?;
            leaving.insert(*attempt);
            seats.push((seat.job, slot));
        }
        for (attempt, live) in self.live.iter().filter(|(_, live)| live.gpu == *id) {
            if seated.contains(&live.job) {
                let stays = reshape.seats.iter().any(|s| s.job == live.job && s.slot == live.slot);
                if !stays && !leaving.contains(attempt) && !self.may_move(*attempt, now) {
                    return None;
                }
            } else if seats.iter().any(|(_, slot)| overlaps(geometry, live.slot, *slot)) {
                // Nobody is sent away without a place to go on.
                return None;
            }
        }
        Some(Sound { gpu: id.clone(), seats, leaving, why: why.clone() })
    }

    /// Returns the GPU's geometry, if the layout is legal there and each seat is one of it.
    fn legal(&self, reshape: &Reshape) -> Option<&Geometry> {
        let MigReport::On { geometry } = &self.gpus.get(&reshape.gpu)?.report.mig else {
            return None;
        };
        let layout: Vec<_> = reshape.layout.iter().copied().collect();
        geometry.check(&layout).ok()?;
        let mut slots = BTreeSet::new();
        let known = reshape.seats.iter().all(|seat| {
            seat.slot.is_some_and(|slot| reshape.layout.contains(&slot) && slots.insert(slot))
        });
        known.then_some(geometry)
    }

    /// Whether a slot is enough for a job that has one to itself.
    fn suits(&self, job: JobId, gpu: &GpuId, slot: Slot) -> Option<()> {
        let mig = self.gpus.get(gpu)?.mig.as_deref()?;
        let profile = mig.geometry.profile(slot.profile)?;
        let ask = match self.attempts.get(&job) {
            Some(attempt) => &self.live.get(attempt)?.asked,
            None => {
                let waiting = self.queued(job)?;
                if waiting.asked.share.is_some() || self.moving.promised(job) {
                    return None;
                }
                &waiting.asked.gpu
            }
        };
        could_hold(ask, mig, profile).then_some(())
    }

    fn ask_to_move(
        &mut self,
        attempt: AttemptId,
        until: Millis,
        sound: &Sound,
        now: Millis,
        mint: &mut dyn FnMut() -> Uuid,
        round: &mut Round,
    ) {
        let Some(live) = self.live.get(&attempt) else { return };
        let job = live.job;
        let Some((_, slot)) = sound.seats.iter().find(|(seated, _)| *seated == job) else { return };
        let place =
            Place { gpu: sound.gpu.clone(), slot: Some(*slot), steps: Vec::new(), part: None };
        let why = self.why_moved(live, &place, &sound.why, now);
        self.moving.asked.insert(attempt, Asked { since: now, until });
        if let Some(live) = self.live.get_mut(&attempt) {
            live.sent = None;
        }
        let decision = DecisionId::from_uuid(mint());
        round.moving.push(MovingRow { job, attempt, decision, place, why });
    }

    /// Tells what a move gains and costs.
    fn why_moved(&self, live: &Live, place: &Place, why: &Explanation, now: Millis) -> Explanation {
        let from = self.place_words(&live.gpu, live.slot);
        let to = self.place_words(&place.gpu, place.slot);
        let left = |gpu: &GpuId, slot| self.left_on(live, &self.kind_of(gpu, slot)?, now);
        let times = left(&live.gpu, live.slot).zip(left(&place.gpu, place.slot));
        let gain = times.map_or_else(String::new, |(here, there)| {
            format!(": {} left there, {} here", spoken(there), spoken(here))
        });
        let cost = spoken(self.move_cost(live));
        let summary = format!(
            "moves from {from} to {to}{gain}; putting its work aside and starting again is taken \
             to cost {cost}; {}",
            why.summary
        );
        Explanation { summary, ..why.clone() }
    }

    pub(super) fn place_words(&self, id: &GpuId, slot: Option<Slot>) -> String {
        let Some(gpu) = self.gpus.get(id) else { return id.to_string() };
        let name = self.gpu_name(gpu);
        slot.map_or_else(|| name.clone(), |slot| format!("{} of {name}", gpu.slot_name(slot)))
    }

    /// Reserves kept places as they become free, and gives up what takes too long.
    pub(super) fn seat(&mut self, now: Millis, mint: &mut dyn FnMut() -> Uuid, round: &mut Round) {
        self.give_up_moves(now);
        if self.moving.reseats.is_empty() || now < self.hold_until {
            return;
        }
        for (id, reseat) in std::mem::take(&mut self.moving.reseats) {
            let mut kept = Vec::new();
            for (job, slot) in reseat.seats {
                if self.attempts.get(&job).is_some_and(|attempt| self.moving.asks(*attempt)) {
                    kept.push((job, slot));
                    continue;
                }
                if !self.ranks.contains_key(&job) {
                    continue;
                }
                let free = self.live.values().all(|live| {
                    live.gpu != id
                        || self.geometry(&id).is_some_and(|g| !overlaps(g, live.slot, slot))
                });
                let place = if free { self.place_for(&id, slot, now) } else { None };
                let Some(place) = place else {
                    kept.push((job, slot));
                    continue;
                };
                let view = self.view(now);
                self.reserve(job, place, reseat.why.clone(), &view, mint, round);
            }
            if !kept.is_empty() {
                self.moving.reseats.insert(id, Reseat { seats: kept, ..reseat });
            }
        }
    }

    /// Returns a free slot as a place, with the steps that make it; `None` while it can't be made.
    fn place_for(&self, id: &GpuId, slot: Slot, now: Millis) -> Option<Place> {
        let gpu = self.gpus.get(id)?;
        let geometry = self.geometry(id)?;
        let operator = self.operator_word(gpu);
        let closed = operator.closed.is_some() || self.is_wished(id) || gpu.open_plan.is_some();
        if !self.available(gpu, now) || closed || self.is_quarantined(id, slot) {
            return None;
        }
        let steps = steps_to(geometry, gpu, &[slot], |slot| self.must_stay(id, slot))?;
        let stands = slice_at(&gpu.report, Some(slot), None).is_some();
        if stands != steps.is_empty() || (operator.pinned.is_some() && !stands) {
            return None;
        }
        Some(Place { gpu: id.clone(), slot: Some(slot), steps, part: None })
    }

    /// Returns what moving the job costs it: what it cost such jobs before, or what it is taken
    /// to cost.
    pub(super) fn move_cost(&self, live: &Live) -> Millis {
        let known = self.estimator.predict(&move_of(&live.facts.task), &any_place());
        known.map_or(MOVE_COST, |known| known.high)
    }

    /// A job runs again after it put its work aside: what that took is learned, and returned.
    pub(super) fn moved(&mut self, job: JobId, task: &str, now: Millis) -> Option<Millis> {
        let took = now.minus(self.moving.underway.remove(&job)?);
        self.learn_move(task, took);
        Some(took)
    }

    /// Takes in how long a job of the task took to go on elsewhere.
    pub(super) fn learn_move(&mut self, task: &str, took: Millis) {
        if !task.is_empty() {
            self.estimator.learn(&move_of(task), &any_place(), took);
        }
    }

    fn geometry(&self, gpu: &GpuId) -> Option<&Geometry> {
        match &self.gpus.get(gpu)?.report.mig {
            MigReport::On { geometry } => Some(geometry),
            MigReport::Off | MigReport::Unsupported => None,
        }
    }

    fn give_up_moves(&mut self, now: Millis) {
        self.moving.reluctant.retain(|_, until| now < *until);
        let ranks = &self.ranks;
        let attempts = &self.attempts;
        self.moving.underway.retain(|job, _| ranks.contains_key(job) || attempts.contains_key(job));
        self.moving.reseats.retain(|_, reseat| now < reseat.until);
        let late: Vec<_> = self
            .moving
            .asked
            .iter()
            .filter(|(_, asked)| now >= asked.until)
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in late {
            self.moving.asked.remove(&attempt);
            if let Some(live) = self.live.get(&attempt) {
                self.moving.reluctant.insert(live.job, now.plus(RELUCTANT_FOR));
            }
        }
    }

    /// Tells what a job waits for whose place is kept.
    pub(super) fn why_promised(&self, job: JobId, now: Millis) -> Option<Explanation> {
        let (gpu, slot, until) = self.moving.place_of(job)?;
        let asked = self.moving.asked.iter().filter_map(|(attempt, asked)| {
            let live = self.live.get(attempt).filter(|live| live.gpu == *gpu)?;
            let since = now.minus(asked.since).get() / 1_000;
            Some(format!("job {} (asked {since} s ago)", live.job))
        });
        let asked: Vec<_> = asked.collect();
        let place = self.place_words(gpu, Some(slot));
        let summary = match asked.is_empty() {
            true => format!("{place} is being made free for it"),
            false => format!(
                "{place} is kept for it until those before it have put their work aside: {}",
                asked.join(", ")
            ),
        };
        let left = until.minus(now).get().div_ceil(1_000);
        Some(Explanation {
            policy: self.policy.name().to_owned(),
            summary,
            would_start_if: Some(format!("they end; given up after {left} s more")),
            ..Explanation::default()
        })
    }
}

/// What moves of a task are learned under: no task's key begins so, since each begins with a user.
fn move_of(task: &str) -> String {
    format!("\u{0}move of {task}")
}

/// A move takes its time wherever it goes.
fn any_place() -> SliceKind {
    SliceKind::whole("")
}

/// Shows a time in words: `1 h 5 min`, `42 s`.
pub(super) fn spoken(time: Millis) -> String {
    let secs = time.get().div_ceil(1_000);
    match (secs / 3_600, secs % 3_600 / 60, secs % 60) {
        (0, 0, secs) => format!("{secs} s"),
        (0, minutes, secs) => format!("{minutes} min {secs} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn overlaps(geometry: &Geometry, one: Option<Slot>, other: Slot) -> bool {
    one.is_none_or(|one| geometry.overlap(one, other))
}

#[cfg(test)]
mod tests;
