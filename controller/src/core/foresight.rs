//! What is foretold of jobs: how long each takes, where, and how much of it is done.
//!
//! Runs are learned as they end; a reload learns the newest ones again from the store. What is left
//! of a job follows from how long it has lasted ([`Prediction::after`]), what it put aside before
//! counted in: time on another slice counts as much as the two slices' predictions compare
//! ([`Cluster::elapsed`]). A job that was resumed is learned from by the sum.

pub mod taught;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_model::life::Outcome;
use tessera_model::mig::{Profile, Slot};
use tessera_model::share::Share;
use tessera_model::spec::{Class, JobSpec};
use tessera_model::task::task_key;
use tessera_model::{GpuId, JobId, Millis};
use tessera_placement::{
    Account, Basis, Client, Estimator as _, Forecast, GpuView, MigView, Prediction, SliceKind,
    could_hold,
};
use tessera_wire::frames::ExitRecord;

use self::taught::Taught;
use super::{Cluster, Live, Waiting};
use crate::ports::Learned;

const MILLION: u64 = 1_000_000;
/// Kinds of slices on which one job's put aside work is remembered: it was moved as often at least.
const ASIDES_MAX: usize = 16;

/// What placement weighs of a job besides its ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What its runs share with those of other jobs; empty, if that is not known.
    pub task: String,
    /// Longest run time of one attempt, as its user says.
    pub limit: Option<Millis>,
    /// Whether it can put its work aside and go on elsewhere: it says how, has its slice to
    /// itself, and nobody who runs with it.
    pub movable: bool,
    /// Whether somebody waits for its answers.
    pub online: bool,
    /// How long it may take to put its work aside.
    pub grace: Millis,
}

impl Facts {
    /// Takes from a specification what is weighed.
    pub fn of(spec: &JobSpec) -> Self {
        Self {
            task: task_key(&spec.user, spec.task_key.as_deref(), &spec.program),
            limit: spec.time_limit,
            movable: spec.checkpoint_signal.is_some()
                && spec.share == Share::Exclusive
                && spec.gang.is_none(),
            online: spec.class == Class::Online,
            grace: spec.grace,
        }
    }
}

/// What was foretold of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foretold {
    /// The task.
    pub task: String,
    /// On what it runs.
    pub on: SliceKind,
    /// Whether the attempt has the whole job before it.
    pub whole: bool,
    /// What of it; `None` where nothing was known.
    pub prediction: Option<Prediction>,
    /// Which model said so, if one did.
    pub model: Option<u64>,
}

/// How many predictions came true, and how many did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The outcome lay within the interval.
    pub within: u64,
    /// It did not.
    pub outside: u64,
}

impl Outcomes {
    /// Counts one more.
    pub const fn take(&mut self, within: bool) {
        let counted = if within { &mut self.within } else { &mut self.outside };
        *counted = counted.saturating_add(1);
    }
}

/// A run that is learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// The task.
    pub task: String,
    /// On what it ran.
    pub on: SliceKind,
    /// How long.
    pub ran: Millis,
}

/// Work that an attempt of an unfinished job put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// The job.
    pub job: JobId,
    /// On what it ran.
    pub on: SliceKind,
    /// How long.
    pub ran: Millis,
}

/// What came of an attempt, as far as times are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lasted {
    /// How long the attempt ran, if it came to its job's end.
    pub ran: Option<Millis>,
    /// How long it ran, if it put its work aside.
    pub aside: Option<Millis>,
    /// How long the whole job takes on such a slice, where it was resumed and that was learned.
    pub useful: Option<Millis>,
}

impl Cluster {
    /// Learns from runs of the past, the oldest first.
    pub(super) fn learn(&mut self, lessons: &[Lesson]) {
        self.estimator.clear();
        for lesson in lessons {
            self.estimator.learn(&lesson.task, &lesson.on, lesson.ran);
        }
    }

    /// Believes a new model of how slices compare, unless what came of its newest predictions speaks
    /// against it.
    pub fn teach(&mut self, taught: Arc<Taught>, came: &[bool]) {
        self.estimator.teach(taught, came);
    }

    /// Returns what predictions come from, and whether it is believed.
    pub fn learned(&self) -> Learned {
        let taught = self.estimator.taught();
        Learned {
            slices: taught.map(|(taught, believed)| (taught.fingerprint(), believed)),
            doubted_tasks: self.estimator.doubted(),
            company: self.forest.told(),
        }
    }

    /// Returns what kind of slice a place is.
    pub(super) fn kind_of(&self, gpu: &GpuId, slot: Option<Slot>) -> Option<SliceKind> {
        let gpu = self.gpus.get(gpu)?;
        match (slot, gpu.mig.as_deref()) {
            (None, _) => Some(SliceKind::whole(&gpu.report.model)),
            (Some(slot), Some(mig)) => {
                kind(&gpu.report.model, mig, mig.geometry.profile(slot.profile)?)
            }
            (Some(_), None) => None,
        }
    }

    /// Predicts a whole run of a job on such a slice.
    pub(super) fn predict(&self, facts: &Facts, on: &SliceKind) -> Option<Prediction> {
        let known = match facts.task.is_empty() {
            false => self.estimator.predict(&facts.task, on),
            true => None,
        };
        known.map(|known| known.within(facts.limit)).or(facts.limit.map(Prediction::by_limit))
    }

    /// Foretells an attempt that has its slice to itself.
    pub(super) fn foretell(
        &self,
        job: JobId,
        facts: &Facts,
        done: u32,
        gpu: &GpuId,
        slot: Option<Slot>,
    ) -> Option<Foretold> {
        let on = self.kind_of(gpu, slot)?;
        let prediction = self.predict_rest(job, facts, done, &on);
        let whole = done == 0 && !self.asides.contains_key(&job);
        let learned = prediction.is_some_and(|known| known.basis == Basis::Learned);
        let model = self.estimator.taught().filter(|_| learned);
        let model = model.map(|(taught, _)| taught.fingerprint());
        Some(Foretold { task: facts.task.clone(), on, whole, prediction, model })
    }

    /// Predicts what is left of a job that doesn't run, on such a slice.
    fn predict_rest(
        &self,
        job: JobId,
        facts: &Facts,
        done: u32,
        on: &SliceKind,
    ) -> Option<Prediction> {
        let whole = self.predict(facts, on)?;
        // A limit holds for each attempt anew.
        let lasted = match whole.basis {
            Basis::TimeLimit => Millis::ZERO,
            _ => self.elapsed(job, facts, done, on),
        };
        Some(whole.after(lasted).within(facts.limit))
    }

    /// Returns how long a job's work before its present attempt would have taken on such a slice.
    fn elapsed(&self, job: JobId, facts: &Facts, done: u32, on: &SliceKind) -> Millis {
        let expected = |kind: &SliceKind| self.predict(facts, kind).map(|whole| whole.expected);
        let here = expected(on);
        let Some(asides) = self.asides.get(&job) else {
            // Put aside by what did not tell how long it ran.
            return here.map_or(Millis::ZERO, |here| part_of(here, u64::from(done), MILLION));
        };
        asides.iter().fold(Millis::ZERO, |sum, (kind, ran)| {
            let both = here.zip(expected(kind)).filter(|_| kind != on);
            // Where nothing says how the slices compare, they are taken to be alike.
            let as_here = both.map_or(*ran, |(here, there)| part_of(*ran, here.get(), there.get()));
            sum.plus(as_here)
        })
    }

    /// Learns from an end.
    pub(super) fn learn_end(&mut self, live: &Live, record: &ExitRecord) -> Lasted {
        let Some(ran) = ran(record) else { return Lasted::default() };
        let Some(foretold) = &live.foretold else { return Lasted::default() };
        if record.outcome == Outcome::Preempted && live.facts.movable {
            return Lasted { aside: Some(ran), ..Lasted::default() };
        }
        if record.outcome != Outcome::Succeeded {
            return Lasted::default();
        }
        if let Some(known) = &foretold.prediction {
            self.estimator.came(known, ran);
        }
        let useful = self.useful(live, foretold, ran).filter(|_| !foretold.task.is_empty());
        if let Some(useful) = useful {
            self.estimator.learn(&foretold.task, &foretold.on, useful);
        }
        Lasted { ran: Some(ran), aside: None, useful: useful.filter(|_| !foretold.whole) }
    }

    /// Returns how long a job that ended would have taken on the slice of its last attempt alone;
    /// nothing, where most of that would be a guess.
    fn useful(&self, live: &Live, foretold: &Foretold, ran: Millis) -> Option<Millis> {
        if foretold.whole {
            return Some(ran);
        }
        let asides = self.asides.get(&live.job)?;
        let measured = |kind: &SliceKind| {
            let known = self.estimator.predict(&foretold.task, kind);
            known.is_some_and(|known| known.basis == Basis::SameSlice)
        };
        let before = self.elapsed(live.job, &live.facts, live.done, &foretold.on);
        let sure = asides
            .iter()
            .all(|(kind, _)| *kind == foretold.on || (measured(kind) && measured(&foretold.on)));
        (sure || before <= ran).then(|| before.plus(ran))
    }

    /// Notes what an attempt put aside, and returns how much of its job is done, in millionths.
    pub(super) fn put_aside(&mut self, live: &Live, lasted: Lasted) -> u32 {
        let (Some(ran), Some(foretold)) = (lasted.aside, &live.foretold) else { return live.done };
        let done = self.progress(live, ran);
        self.note_aside(live.job, foretold.on.clone(), ran);
        done
    }

    pub(super) fn note_aside(&mut self, job: JobId, on: SliceKind, ran: Millis) {
        let known = self.asides.entry(job).or_default();
        if let Some((_, sum)) = known.iter_mut().find(|(kind, _)| *kind == on) {
            *sum = sum.plus(ran);
        } else if known.len() < ASIDES_MAX {
            known.push((on, ran));
        }
    }

    /// Returns what is known of a whole run on an attempt's slice, and how much of one its job has
    /// lasted when its attempt has run so long.
    fn course(&self, live: &Live, ran: Millis) -> Option<(Prediction, Millis)> {
        let on = &live.foretold.as_ref()?.on;
        let whole = self.predict(&live.facts, on)?;
        // A limit holds for each attempt anew.
        let before = match whole.basis {
            Basis::TimeLimit => Millis::ZERO,
            _ => self.elapsed(live.job, &live.facts, live.done, on),
        };
        Some((whole, before.plus(ran)))
    }

    /// Returns when a running attempt is expected to end, from now; `None` where nothing says. One that
    /// has lasted longer than nine in ten were expected to promises nothing but its time limit.
    pub(super) fn ends_in(&self, live: &Live, now: Millis) -> Option<Millis> {
        let ran = live.ran(now);
        let (whole, lasted) = self.course(live, ran)?;
        let limit = live.facts.limit.map(|limit| limit.minus(ran));
        if whole.basis != Basis::TimeLimit && lasted >= whole.high {
            return limit;
        }
        Some(whole.after(lasted).within(limit).expected)
    }

    /// Returns what would be left of a running attempt on another kind of slice.
    pub(super) fn left_on(&self, live: &Live, on: &SliceKind, now: Millis) -> Option<Millis> {
        let (here, lasted) = self.course(live, live.ran(now))?;
        let there = self.predict(&live.facts, on)?;
        let left = here.after(lasted).expected;
        Some(part_of(left, there.expected.get(), here.expected.get()))
    }

    /// Returns how much of a job is done after its attempt has run so long: what it has lasted, over
    /// that and what is left.
    pub(super) fn progress(&self, live: &Live, ran: Millis) -> u32 {
        let course = self.course(live, ran);
        let Some((whole, lasted)) = course.filter(|(known, _)| known.basis != Basis::TimeLimit)
        else {
            return live.done;
        };
        let all = lasted.plus(whole.after(lasted).expected);
        let done = part_of(Millis::new(MILLION), lasted.get(), all.get()).get();
        u32::try_from(done).unwrap_or(0)
    }

    /// Predicts what is left of a job that waits, on the tightest slice that suits it.
    pub(super) fn predict_waiting(&self, waiting: &Waiting) -> Option<Prediction> {
        if waiting.asked.share.is_some() {
            return None;
        }
        let tightest = self.gpus.values().filter_map(|gpu| {
            let Some(mig) = gpu.mig.as_deref() else {
                return Some((gpu.report.memory, SliceKind::whole(&gpu.report.model)));
            };
            let suits = |profile: &&Profile| could_hold(&waiting.asked.gpu, mig, profile);
            let profile = mig.plain().find(suits)?;
            Some((profile.memory, kind(&gpu.report.model, mig, profile)?))
        });
        let (_, on) = tightest.min()?;
        self.predict_rest(waiting.asked.id, &waiting.facts, waiting.done, &on)
    }
}

fn part_of(time: Millis, by: u64, over: u64) -> Millis {
    let part = u128::from(time.get()) * u128::from(by) / u128::from(over.max(1));
    Millis::new(u64::try_from(part).unwrap_or(u64::MAX))
}

impl Live {
    /// Returns how long its program has run.
    pub(super) fn ran(&self, now: Millis) -> Millis {
        self.began.map_or(Millis::ZERO, |began| now.minus(began))
    }
}

fn ran(record: &ExitRecord) -> Option<Millis> {
    let both = record.started_unix > Millis::ZERO && record.ended_unix >= record.started_unix;
    both.then(|| record.ended_unix.minus(record.started_unix))
}

/// Returns the kind of an instance of the profile.
pub(super) fn kind(model: &str, mig: &MigView, profile: &Profile) -> Option<SliceKind> {
    let whole = u16::from(mig.largest()?.compute_slices.max(1));
    Some(SliceKind {
        model: model.to_owned(),
        profile: profile.name.to_string(),
        part: u16::from(profile.compute_slices) * 1_000 / whole,
    })
}

/// What policies are told of jobs.
#[derive(Debug)]
pub(super) struct Foresight<'c> {
    cluster: &'c Cluster,
    now: Millis,
    /// By user, of those who were asked about: thousands of jobs are a handful of users'.
    accounts: RefCell<BTreeMap<Arc<str>, Account>>,
    /// When the improving of seats began, by the stopwatch.
    improves: Cell<Option<Duration>>,
}

/// A job, wherever it stands.
struct Known<'c> {
    facts: &'c Facts,
    live: Option<&'c Live>,
    done: u32,
    ask: &'c tessera_model::spec::GpuAsk,
    user: &'c Arc<str>,
}

impl<'c> Foresight<'c> {
    pub(super) fn new(cluster: &'c Cluster, now: Millis) -> Self {
        Self { cluster, now, accounts: RefCell::default(), improves: Cell::default() }
    }

    fn known(&self, job: JobId) -> Option<Known<'c>> {
        if let Some(attempt) = self.cluster.attempts.get(&job) {
            let live = self.cluster.live.get(attempt)?;
            let (facts, ask) = (&*live.facts, &live.asked);
            return Some(Known { facts, live: Some(live), done: live.done, ask, user: &live.user });
        }
        let waiting = self.cluster.queued(job)?;
        let (facts, ask) = (&*waiting.facts, &waiting.asked.gpu);
        Some(Known { facts, live: None, done: waiting.done, ask, user: &waiting.asked.user })
    }
}

impl Forecast for Foresight<'_> {
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        let known = self.known(job)?;
        let mig = gpu.mig.as_deref()?;
        let enough = self.cluster.needs(known.facts);
        if !could_hold(known.ask, mig, profile) || enough.is_some_and(|need| need > profile.memory)
        {
            return None;
        }
        let whole = self.cluster.predict(known.facts, &kind(&gpu.model, mig, profile)?)?;
        // A limit says when a job ends at the latest, and nothing of slices.
        let expected = (whole.basis != Basis::TimeLimit).then_some(whole.expected)?;
        // Who takes longer than was expected where it runs would elsewhere too.
        let longer = |live: &Live| {
            let (here, lasted) = self.cluster.course(live, live.ran(self.now))?;
            let all = lasted.plus(here.after(lasted).expected);
            Some(part_of(expected, all.get(), here.expected.get()))
        };
        let time = known.live.and_then(longer).unwrap_or(expected);
        Some(time.max(Millis::new(1)))
    }

    fn is_measured(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> bool {
        let known = || {
            let (known, mig) = (self.known(job)?, gpu.mig.as_deref()?);
            self.cluster.predict(known.facts, &kind(&gpu.model, mig, profile)?)
        };
        known().is_none_or(|known| matches!(known.basis, Basis::SameSlice | Basis::Learned))
    }

    fn done(&self, job: JobId) -> Option<u32> {
        let known = self.known(job)?;
        if known.facts.task.is_empty() {
            return None;
        }
        match known.live.map(|live| (live, live.began)) {
            Some((live, Some(began))) => Some(self.cluster.progress(live, self.now.minus(began))),
            Some((_, None)) | None => Some(known.done),
        }
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.known(job)?.live?.began
    }

    fn limit(&self, job: JobId) -> Option<Millis> {
        let facts = self.known(job)?.facts;
        Some(facts.limit?.plus(facts.grace))
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        let known = self.known(job)?;
        let Some(live) = known.live else {
            // What was put aside has been paid for.
            return known.facts.movable.then_some(Millis::ZERO);
        };
        let attempt = *self.cluster.attempts.get(&job)?;
        let rest = self.cluster.move_rest;
        let rested = live.began.is_some_and(|began| self.now >= began.plus(rest));
        (rested && self.cluster.may_move(attempt, self.now)).then(|| self.cluster.move_cost(live))
    }

    fn online(&self, job: JobId) -> bool {
        self.known(job).is_some_and(|known| known.facts.online)
    }

    fn go_on(&self, _: usize) -> bool {
        let now = self.cluster.stopwatch.read();
        let began = self.improves.get().unwrap_or(now);
        self.improves.set(Some(began));
        now.saturating_sub(began) < self.cluster.improve_for
    }

    // Users name no deadlines, and nobody shares a slice but by its user's wish: the search seats no
    // pairs. How sharers do is told by [`Self::together`], and kernel by kernel by their turns.
    tessera_placement::knows_no!(deadline, demand, time_beside, time_in_turns, companion);

    fn together(
        &self,
        clients: &[Client],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        self.cluster.together(clients, gpu, profile)
    }

    fn account(&self, job: JobId) -> Option<Account> {
        let (cluster, user) = (self.cluster, self.known(job)?.user);
        if let Some(known) = self.accounts.borrow().get(user) {
            return Some(known.clone());
        }
        let had = |user: &str| cluster.book.had(user, &cluster.accounts, self.now);
        let account = cluster.accounts.account(user, had);
        self.accounts.borrow_mut().insert(Arc::clone(user), account.clone());
        Some(account)
    }
}

/// Returns facts of which nothing is known.
pub(super) fn unknown() -> Arc<Facts> {
    Arc::default()
}
