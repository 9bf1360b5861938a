//! What is predicted of jobs, for the policies that weigh times and not only sizes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::Profile;
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{Bytes, JobId, Millis};

use crate::view::{Client, GpuView};

/// How much of a whole GPU a job keeps busy when it runs alone on it, in thousandths.
///
/// Source: co-execution study, calibration table (average SM and memory utilisation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    /// Streaming multiprocessors.
    pub sm: u16,
    /// Memory bandwidth.
    pub memory: u16,
}

/// What a job that may share a slice brings to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Companion {
    /// Whose it is: under MPS a fault of one is a fault of all.
    #[serde(with = "crate::view::shared_text")]
    pub user: Arc<str>,
    /// Memory that it has to be left.
    pub memory: Bytes,
}

/// Who pays for a job: what the account has had lately, and what it may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its name: jobs of equal name draw on one account.
    #[serde(with = "crate::view::shared_text")]
    pub name: Arc<str>,
    /// What it is entitled to, beside the others' numbers.
    pub shares: u32,
    /// Time that it has had compute slices, decayed by age, added up over slices.
    pub used: Millis,
    /// Most compute slices that its jobs may hold at once, if that is limited.
    pub quota: Option<u32>,
    /// What the job's user may hold of it besides, if it has several users and that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Limit>,
}

/// Most compute slices that somebody's jobs may hold at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Whose: jobs under a limit of equal name count together.
    #[serde(with = "crate::view::shared_text")]
    pub name: Arc<str>,
    /// How many.
    pub slices: u32,
}

impl Account {
    /// Returns everything that limits what its jobs hold at once.
    pub fn limits(&self) -> impl Iterator<Item = Limit> {
        let own = self.quota.map(|slices| Limit { name: Arc::clone(&self.name), slices });
        own.into_iter().chain(self.member.clone())
    }
}

/// Answers what is known or predicted of a job; `None` where nothing is.
///
/// The simulator answers with the truth or with the truth and an error; a live controller answers
/// with what it learned. A policy must do without: [`Unknown`] knows nothing.
///
/// No question has an answer of its own, so that nobody who passes questions on forgets one.
///
/// Within a round the same question has the same answer, and GPUs of one model and geometry are
/// alike: [`crate::record::Heard`] writes answers down by that, and has to know every question.
pub trait Forecast {
    /// How long the whole job takes, alone on an instance of the profile of such a GPU.
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis>;

    /// Whether [`Self::time`] rests on runs on such slices, or on what is known to hold for them; else
    /// it is a cautious guess, which says of a larger slice no more than that it is not slower.
    fn is_measured(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> bool;

    /// How much of the job is done, in millionths.
    fn done(&self, job: JobId) -> Option<u32>;

    /// When its present attempt began.
    fn since(&self, job: JobId) -> Option<Millis>;

    /// How long after its begin an attempt of the job has ended at the latest, since its user said so:
    /// what it then still takes to end is counted in.
    fn limit(&self, job: JobId) -> Option<Millis>;

    /// What it costs to stop the job and go on elsewhere; `None` where that loses its work.
    fn move_price(&self, job: JobId) -> Option<Millis>;

    /// When it has to be done.
    fn deadline(&self, job: JobId) -> Option<Millis>;

    /// Whether somebody waits for its answers (MMK's *online* class).
    fn online(&self, job: JobId) -> bool;

    /// What it keeps busy.
    fn demand(&self, job: JobId) -> Option<Demand>;

    /// How long the whole job takes on such an instance with its part of the multiprocessors,
    /// beside others with theirs; `None` where that isn't predicted.
    ///
    /// Source: MMK, §III-A.
    fn time_beside(
        &self,
        job: JobId,
        sm: SmPercent,
        others: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis>;

    /// How long the whole job takes on such an instance when its kernels take turns with those of
    /// others, each at its priority; `None` where that isn't predicted, or the job's kernels can't be
    /// held back for others'. Alone ([`crate::turns`]) it takes what it always does.
    fn time_in_turns(
        &self,
        job: JobId,
        priority: Priority,
        others: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis>;

    /// How fast each of some jobs is that share such an instance under MPS, in thousandths of what it does
    /// there with its percentage while nobody else is there; `None` where that isn't predicted. No
    /// profile is a whole GPU with MIG off.
    ///
    /// Source: MMK, §III-A.
    fn together(
        &self,
        clients: &[Client],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>>;

    /// Whether seats may be improved further after so many searches of a GPU for that: asked before
    /// each. A controller answers by its clock, and what it answered is recorded, so that the round
    /// decides the same again; the simulator says yes, and leaves it to the policy's count.
    fn go_on(&self, searches: usize) -> bool;

    /// What the job brings to a slice that it shares; `None` if it has to have one alone.
    fn companion(&self, job: JobId) -> Option<Companion>;

    /// Who pays for it, the same for all jobs of a user; `None` where usage isn't kept, and all are
    /// alike.
    fn account(&self, job: JobId) -> Option<Account>;
}

/// Writes a [`Forecast`]'s answers to the named questions as one gives them who knows nothing. Who
/// writes a forecast names them, so that a new question is forgotten nowhere.
#[macro_export]
macro_rules! knows_no {
    ($($question:ident),+ $(,)?) => { $($crate::knows_no!(@ $question);)+ };
    (@ time) => { $crate::knows_no!(@ of_slice time -> Option<::tessera_model::Millis> = None); };
    (@ is_measured) => { $crate::knows_no!(@ of_slice is_measured -> bool = true); };
    (@ done) => { $crate::knows_no!(@ of_job done -> Option<u32> = None); };
    (@ since) => { $crate::knows_no!(@ of_job since -> Option<::tessera_model::Millis> = None); };
    (@ limit) => { $crate::knows_no!(@ of_job limit -> Option<::tessera_model::Millis> = None); };
    (@ move_price) => {
        $crate::knows_no!(@ of_job move_price -> Option<::tessera_model::Millis> = None);
    };
    (@ deadline) => {
        $crate::knows_no!(@ of_job deadline -> Option<::tessera_model::Millis> = None);
    };
    (@ online) => { $crate::knows_no!(@ of_job online -> bool = false); };
    (@ demand) => { $crate::knows_no!(@ of_job demand -> Option<$crate::Demand> = None); };
    (@ companion) => { $crate::knows_no!(@ of_job companion -> Option<$crate::Companion> = None); };
    (@ account) => { $crate::knows_no!(@ of_job account -> Option<$crate::Account> = None); };
    (@ time_beside) => {
        $crate::knows_no!(@ of_sharer time_beside, ::tessera_model::share::SmPercent);
    };
    (@ time_in_turns) => {
        $crate::knows_no!(@ of_sharer time_in_turns, ::tessera_model::spec::Priority);
    };
    (@ together) => {
        fn together(
            &self,
            _: &[$crate::Client],
            _: &$crate::GpuView,
            _: Option<&::tessera_model::mig::Profile>,
        ) -> Option<Vec<u64>> {
            None
        }
    };
    (@ go_on) => {
        fn go_on(&self, _: usize) -> bool {
            true
        }
    };
    (@ of_job $question:ident -> $answer:ty = $none:expr) => {
        fn $question(&self, _: ::tessera_model::JobId) -> $answer {
            $none
        }
    };
    (@ of_slice $question:ident -> $answer:ty = $none:expr) => {
        fn $question(
            &self,
            _: ::tessera_model::JobId,
            _: &$crate::GpuView,
            _: &::tessera_model::mig::Profile,
        ) -> $answer {
            $none
        }
    };
    (@ of_sharer $question:ident, $part:ty) => {
        fn $question(
            &self,
            _: ::tessera_model::JobId,
            _: $part,
            _: &[(::tessera_model::JobId, $part)],
            _: &$crate::GpuView,
            _: &::tessera_model::mig::Profile,
        ) -> Option<::tessera_model::Millis> {
            None
        }
    };
}

/// Knows nothing of any job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unknown;

impl Forecast for Unknown {
    knows_no!(
        time,
        is_measured,
        done,
        since,
        move_price,
        limit,
        deadline,
        online,
        demand,
        time_beside,
        time_in_turns,
        together,
        go_on,
        companion,
        account
    );
}
