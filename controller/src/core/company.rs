//! How jobs do beside others under MPS: learned from attempts that shared slices, foretold of those that
//! are about to, and held against what came.
//!
//! Source: MMK, §III-A; what of it a controller can know, [`tessera_predict::sharing::seen`] says.

use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_model::mig::{Profile, Slot};
use tessera_model::share::Part;
use tessera_model::{AttemptId, GpuId, Millis};
use tessera_placement::{Basis, Client, Empirical, Estimator as _, GpuView, Sharer, SliceKind};
use tessera_predict::Trained;
use tessera_predict::drift::{Trust, Watch};
use tessera_predict::sharing::seen::{self, Company, Crowd, Others, Ran};

use super::Cluster;
use super::foresight::{Facts, Lesson};

/// What is drawn while learning comes from this: equal runs give an equal model.
const SEED: u64 = 1;
/// How far the others on a slice may differ on average from those that were there at first, in
/// thousandths of a job, for a prediction to be held against what came: it was made of those.
pub const STEADY: u32 = 250;

/// What was foretold of an attempt under MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foretold {
    /// The task.
    pub task: String,
    /// On what it runs.
    pub on: SliceKind,
    /// The attempt itself.
    pub client: Client,
    /// How many were there before it.
    pub others: u32,
    /// Its speed beside them, and which model said so; `None` where none did.
    pub speed: Option<(Speed, u64)>,
}

/// A speed with its interval, in thousandths of that alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// One in twenty is expected to be slower.
    pub low: u32,
    /// What is expected.
    pub value: u32,
    /// One in twenty is expected to be faster.
    pub high: u32,
}

/// An attempt that shared a slice under MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRun {
    /// Which.
    pub attempt: AttemptId,
    /// Its GPU and the first memory slice of its instance.
    pub place: (GpuId, i16),
    /// The task.
    pub task: String,
    /// On what it ran.
    pub on: SliceKind,
    /// What is known of it.
    pub client: seen::Client,
    /// When its program began.
    pub began: Millis,
    /// When it ended; of one that goes on, now.
    pub ended: Millis,
    /// Whether it came to its job's end in one piece.
    pub whole: bool,
}

/// What came of an attempt beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Its speed over its whole run, in thousandths of that alone.
    pub speed: u32,
    /// How many others were there on average, in thousandths.
    pub beside: u32,
}

/// Works out what came of runs whose tasks are known to take so long alone on such slices, with what is
/// to be learned from them.
pub fn came(runs: &[SharedRun], alone: &[Lesson]) -> Vec<(Came, Ran)> {
    let mut known = Empirical::default();
    alone.iter().for_each(|lesson| known.learn(&lesson.task, &lesson.on, lesson.ran));
    let mut places: BTreeMap<&(GpuId, i16), Vec<&SharedRun>> = BTreeMap::new();
    for run in runs {
        places.entry(&run.place).or_default().push(run);
    }
    let of = |run: &SharedRun| {
        let whole = known.predict(&run.task, &run.on).filter(|_| run.whole)?;
        let alone = (whole.basis == Basis::SameSlice).then_some(whole.expected.get())?;
        let ran = run.ended.minus(run.began).get();
        if ran == 0 {
            return None;
        }
        let mut others = Others::default();
        let beside = places.get(&run.place).into_iter().flatten();
        for other in beside.filter(|other| other.attempt != run.attempt) {
            let both = run.ended.min(other.ended).minus(run.began.max(other.began)).get();
            others.add(&other.client, both.saturating_mul(1_000) / ran);
        }
        // Nobody is quicker beside others: runs differ.
        let speed =
            u32::try_from(alone.saturating_mul(1_000) / ran).unwrap_or(1_000).clamp(1, 1_000);
        let beside = u32::try_from(others.count).unwrap_or(u32::MAX);
        let came = Came { attempt: run.attempt, speed, beside };
        let company = Company { slice: run.on.part, own: run.client, others };
        Some((came, Ran::of(&run.task, company, speed)))
    };
    runs.iter().filter_map(of).collect()
}

/// A forest with what it was made of.
#[derive(Debug)]
pub struct Crowded {
    crowd: Crowd,
}

impl Crowded {
    /// Learns; `None` if the runs are too few to learn from and to test with.
    pub fn from(rows: &[Ran]) -> Option<Self> {
        Some(Self { crowd: Crowd::learn(rows, SEED).ok()? })
    }

    /// Returns the model with its version and its error.
    pub const fn trained(&self) -> &Trained {
        &self.crowd.trained
    }

    /// Returns which model it is.
    pub const fn fingerprint(&self) -> u64 {
        self.crowd.trained.version.fingerprint
    }
}

/// What is known of company, and whether it is believed.
#[derive(Clone, Debug, Default)]
pub(super) struct Forest {
    model: Option<Arc<Crowded>>,
    watch: Watch,
}

impl Forest {
    /// Returns the model, if its word counts.
    fn asked(&self) -> Option<&Crowd> {
        let crowd = &self.model.as_deref()?.crowd;
        (crowd.is_useful() && self.watch.trust() == Trust::Trusted).then_some(crowd)
    }

    /// Returns which model there is, and whether its word counts.
    pub(super) fn told(&self) -> Option<(u64, bool)> {
        Some((self.model.as_deref()?.fingerprint(), self.asked().is_some()))
    }
}

impl Cluster {
    /// Believes a model of how jobs do beside others, unless what came of its newest predictions speaks
    /// against it.
    pub fn teach_company(&mut self, model: Arc<Crowded>, came: &[bool]) {
        let mut watch = Watch::new();
        for covered in came {
            watch.take(*covered);
        }
        self.forest = Forest { model: Some(model), watch };
    }

    /// Predicts how fast each of some jobs under MPS is beside the others, in thousandths of what it does
    /// with its percentage while nobody else is there.
    pub(super) fn together(
        &self,
        clients: &[Client],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        let crowd = self.forest.asked()?;
        let part = match (profile, gpu.mig.as_deref()) {
            (Some(profile), Some(mig)) => super::foresight::kind(&gpu.model, mig, profile)?.part,
            (Some(_), None) => return None,
            (None, _) => SliceKind::whole(&gpu.model).part,
        };
        let clients: Vec<_> = clients.iter().map(known).collect();
        Some(crowd.together(part, &clients))
    }

    /// Foretells an attempt that is about to share a slice under MPS.
    pub(super) fn foretell_beside(
        &self,
        facts: &Facts,
        sharer: &Sharer,
        gpu: &GpuId,
        slot: Option<Slot>,
    ) -> Option<Foretold> {
        let client = sharer.client?;
        let on = self.kind_of(gpu, slot)?;
        let there = self.live.values().filter(|live| live.gpu == *gpu && live.slot == slot);
        let mut others = Others::default();
        let mut count = 0;
        for other in there.filter_map(|live| live.share.as_ref()?.client) {
            others.add(&known(&other), 1_000);
            count += 1;
        }
        let said = |crowd: &Crowd| {
            let told = crowd.predict(&Company { slice: on.part, own: known(&client), others });
            let [low, value, high] =
                [told.low, told.value, told.high].map(|end| u32::try_from(end).unwrap_or(1_000));
            let (low, high) = (low.min(value), high.max(value));
            (Speed { low, value, high }, told.model)
        };
        let speed = self.forest.asked().map(said);
        Some(Foretold { task: facts.task.clone(), on, client, others: count, speed })
    }
}

/// Returns what is known of a sharer, if it shares under MPS.
pub(super) fn client(part: Part, facts: &Facts, busy: Option<u16>) -> Option<Client> {
    match part {
        Part::Mps(share) => Some(Client { online: facts.online, sm: share.sm, busy }),
        Part::Kernel(_) | Part::Compute(_) => None,
    }
}

fn known(client: &Client) -> seen::Client {
    seen::Client { online: client.online, sm_percent: client.sm.get(), busy: client.busy }
}

#[cfg(test)]
mod tests;
