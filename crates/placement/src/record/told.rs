//! What a policy was told of jobs: the answers to the very questions that it asked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_model::mig::{Geometry, Profile, ProfileId};
use tessera_model::share::SmPercent;
use tessera_model::spec::Priority;
use tessera_model::{JobId, Millis};

use crate::forecast::{Account, Companion, Demand, Forecast};
use crate::view::{Client, ClusterView, GpuView, MigView};

/// GPUs that no forecast tells apart: one model with one geometry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) model: String,
    pub(super) mig: Option<Arc<MigView>>,
}

impl Kind {
    fn of(gpu: &GpuView) -> Self {
        Self { model: gpu.model.clone(), mig: gpu.mig.clone() }
    }

    pub(super) fn record(&self) -> KindRecord {
        let geometry = self.mig.as_ref().map(|mig| mig.geometry.clone());
        KindRecord { model: self.model.clone(), geometry }
    }

    fn is_of(&self, gpu: &GpuView) -> bool {
        // Comparing pointers first: the views of one round share them.
        self.mig == gpu.mig && self.model == gpu.model
    }
}

/// A kind, written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindRecord {
    /// The driver's name for the board.
    pub model: String,
    /// Its geometry; none where MIG is off.
    pub geometry: Option<Geometry>,
}

/// Returns the number of a GPU's kind, counted from 0.
pub(super) fn number_of(kinds: &[Kind], gpu: &GpuView) -> Option<u32> {
    let found = kinds.iter().position(|kind| kind.is_of(gpu))?;
    u32::try_from(found).ok()
}

/// Adds the kinds of a view's GPUs that are new.
pub(super) fn add_kinds(kinds: &mut Vec<Kind>, cluster: &ClusterView) {
    for gpu in &cluster.gpus {
        if number_of(kinds, gpu).is_none() {
            kinds.push(Kind::of(gpu));
        }
    }
}

/// A job's time on a kind of slice: job, kind of GPU, profile.
type OnSlice = (JobId, u32, ProfileId);
/// The same with its part of the multiprocessors, beside others with theirs.
type Beside = (OnSlice, SmPercent, Vec<(JobId, SmPercent)>);
/// The same with its priority, beside others with theirs.
type InTurns = (OnSlice, Priority, Vec<(JobId, Priority)>);

/// Those who share a kind of slice under MPS: kind of GPU, profile (none with MIG off), who.
type Together = (u32, Option<ProfileId>, Vec<Client>);

/// Declares what is kept of each question, and what of it is written down.
macro_rules! questions {
    ($($name:ident: $key:ty => $value:ty;)*) => {
        /// Answers by question.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Told {
            $($name: BTreeMap<$key, $value>,)*
        }

        /// Answers that are new, or other than before.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct News {
            $(#[serde(skip_serializing_if = "Vec::is_empty")]
            $name: Vec<($key, $value)>,)*
        }

        impl Told {
            /// Returns what is not in `before`.
            pub(super) fn since(&self, before: &Self) -> News {
                News { $($name: changed(&before.$name, &self.$name),)* }
            }

            /// Takes in what is new.
            pub(super) fn learn(&mut self, news: &News) {
                $(self.$name.extend(news.$name.iter().cloned());)*
            }
        }
    };
}

questions! {
    times: OnSlice => Option<Millis>;
    measured: OnSlice => bool;
    done: JobId => Option<u32>;
    since: JobId => Option<Millis>;
    limits: JobId => Option<Millis>;
    move_prices: JobId => Option<Millis>;
    deadlines: JobId => Option<Millis>;
    online: JobId => bool;
    demands: JobId => Option<Demand>;
    beside: Beside => Option<Millis>;
    in_turns: InTurns => Option<Millis>;
    together: Together => Option<Vec<u64>>;
    go_on: usize => bool;
    companions: JobId => Option<Companion>;
    accounts: JobId => Option<Account>;
    usage: String => Millis;
}

impl Told {
    /// Adds what an account has had; records of old have it with each job.
    fn with_usage(&self, account: Option<Account>) -> Option<Account> {
        let account = account?;
        let used = self.usage.get(&*account.name).copied().unwrap_or(account.used);
        Some(Account { used, ..account })
    }
}

/// Returns the entries of `now` that `before` lacks or has otherwise.
fn changed<K: Ord + Clone, V: PartialEq + Clone>(
    before: &BTreeMap<K, V>,
    now: &BTreeMap<K, V>,
) -> Vec<(K, V)> {
    let mut old = before.iter().peekable();
    let mut news = Vec::new();
    for (key, value) in now {
        while old.next_if(|(known, _)| *known < key).is_some() {}
        if old.peek().is_none_or(|known| *known != (key, value)) {
            news.push((key.clone(), value.clone()));
        }
    }
    news
}

/// A forecast that keeps what it is asked with its answers. Each question is passed on once.
pub struct Heard<'f> {
    forecast: &'f dyn Forecast,
    pub(super) kinds: Vec<Kind>,
    told: RefCell<Told>,
}

impl std::fmt::Debug for Heard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heard").field("told", &self.told).finish_non_exhaustive()
    }
}

impl<'f> Heard<'f> {
    pub(super) fn new(forecast: &'f dyn Forecast, kinds: Vec<Kind>) -> Self {
        Self { forecast, kinds, told: RefCell::default() }
    }

    pub(super) fn into_parts(self) -> (Vec<Kind>, Told) {
        (self.kinds, self.told.into_inner())
    }

    fn once<K: Ord, V: Clone>(
        &self,
        of: impl Fn(&mut Told) -> &mut BTreeMap<K, V>,
        key: K,
        ask: impl FnOnce() -> V,
    ) -> V {
        if let Some(known) = of(&mut self.told.borrow_mut()).get(&key) {
            return known.clone();
        }
        let answer = ask();
        of(&mut self.told.borrow_mut()).insert(key, answer.clone());
        answer
    }
}

impl Forecast for Heard<'_> {
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        let ask = || self.forecast.time(job, gpu, profile);
        match number_of(&self.kinds, gpu) {
            Some(kind) => self.once(|told| &mut told.times, (job, kind, profile.id), ask),
            // Not a GPU of the view that was shown.
            None => ask(),
        }
    }

    fn is_measured(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> bool {
        let ask = || self.forecast.is_measured(job, gpu, profile);
        match number_of(&self.kinds, gpu) {
            Some(kind) => self.once(|told| &mut told.measured, (job, kind, profile.id), ask),
            None => ask(),
        }
    }

    fn done(&self, job: JobId) -> Option<u32> {
        self.once(|told| &mut told.done, job, || self.forecast.done(job))
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.once(|told| &mut told.since, job, || self.forecast.since(job))
    }

    fn limit(&self, job: JobId) -> Option<Millis> {
        self.once(|told| &mut told.limits, job, || self.forecast.limit(job))
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        self.once(|told| &mut told.move_prices, job, || self.forecast.move_price(job))
    }

    fn deadline(&self, job: JobId) -> Option<Millis> {
        self.once(|told| &mut told.deadlines, job, || self.forecast.deadline(job))
    }

    fn online(&self, job: JobId) -> bool {
        self.once(|told| &mut told.online, job, || self.forecast.online(job))
    }

    fn demand(&self, job: JobId) -> Option<Demand> {
        self.once(|told| &mut told.demands, job, || self.forecast.demand(job))
    }

    fn time_beside(
        &self,
        job: JobId,
        sm: SmPercent,
        others: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let ask = || self.forecast.time_beside(job, sm, others, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return ask() };
        let key = ((job, kind, profile.id), sm, others.to_vec());
        self.once(|told| &mut told.beside, key, ask)
    }

    fn time_in_turns(
        &self,
        job: JobId,
        priority: Priority,
        others: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let ask = || self.forecast.time_in_turns(job, priority, others, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return ask() };
        let key = ((job, kind, profile.id), priority, others.to_vec());
        self.once(|told| &mut told.in_turns, key, ask)
    }

    fn together(
        &self,
        clients: &[Client],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        let ask = || self.forecast.together(clients, gpu, profile);
        let Some(kind) = number_of(&self.kinds, gpu) else { return ask() };
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        self.once(|told| &mut told.together, key, ask)
    }

    fn go_on(&self, searches: usize) -> bool {
        self.once(|told| &mut told.go_on, searches, || self.forecast.go_on(searches))
    }

    fn companion(&self, job: JobId) -> Option<Companion> {
        self.once(|told| &mut told.companions, job, || self.forecast.companion(job))
    }

    fn account(&self, job: JobId) -> Option<Account> {
        // What an account has had is other in every round, and the same for all of its jobs: it is
        // kept apart, so that a record has one number an account.
        let known = self.told.borrow().accounts.get(&job).cloned();
        if let Some(known) = known {
            return self.told.borrow().with_usage(known);
        }
        let asked = self.forecast.account(job);
        let mut told = self.told.borrow_mut();
        if let Some(account) = &asked {
            told.usage.entry(account.name.to_string()).or_insert(account.used);
        }
        let bare = asked.map(|account| Account { used: Millis::ZERO, ..account });
        told.accounts.insert(job, bare.clone());
        told.with_usage(bare)
    }
}

/// A forecast that repeats what was told; nothing is known of what was not asked then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retold<'t> {
    pub(super) kinds: &'t [Kind],
    pub(super) told: &'t Told,
}

impl Forecast for Retold<'_> {
    fn time(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        self.told.times.get(&(job, kind, profile.id)).copied()?
    }

    fn is_measured(&self, job: JobId, gpu: &GpuView, profile: &Profile) -> bool {
        let kind = number_of(self.kinds, gpu);
        let told = kind.and_then(|kind| self.told.measured.get(&(job, kind, profile.id)));
        told.is_none_or(|measured| *measured)
    }

    fn done(&self, job: JobId) -> Option<u32> {
        self.told.done.get(&job).copied()?
    }

    fn since(&self, job: JobId) -> Option<Millis> {
        self.told.since.get(&job).copied()?
    }

    fn limit(&self, job: JobId) -> Option<Millis> {
        self.told.limits.get(&job).copied()?
    }

    fn move_price(&self, job: JobId) -> Option<Millis> {
        self.told.move_prices.get(&job).copied()?
    }

    fn deadline(&self, job: JobId) -> Option<Millis> {
        self.told.deadlines.get(&job).copied()?
    }

    fn online(&self, job: JobId) -> bool {
        self.told.online.get(&job).is_some_and(|online| *online)
    }

    fn demand(&self, job: JobId) -> Option<Demand> {
        self.told.demands.get(&job).copied()?
    }

    fn time_beside(
        &self,
        job: JobId,
        sm: SmPercent,
        others: &[(JobId, SmPercent)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        self.told.beside.get(&((job, kind, profile.id), sm, others.to_vec())).copied()?
    }

    fn time_in_turns(
        &self,
        job: JobId,
        priority: Priority,
        others: &[(JobId, Priority)],
        gpu: &GpuView,
        profile: &Profile,
    ) -> Option<Millis> {
        let kind = number_of(self.kinds, gpu)?;
        self.told.in_turns.get(&((job, kind, profile.id), priority, others.to_vec())).copied()?
    }

    fn together(
        &self,
        clients: &[Client],
        gpu: &GpuView,
        profile: Option<&Profile>,
    ) -> Option<Vec<u64>> {
        let kind = number_of(self.kinds, gpu)?;
        let key = (kind, profile.map(|profile| profile.id), clients.to_vec());
        self.told.together.get(&key).cloned()?
    }

    fn go_on(&self, searches: usize) -> bool {
        self.told.go_on.get(&searches).is_none_or(|went_on| *went_on)
    }

    fn companion(&self, job: JobId) -> Option<Companion> {
        self.told.companions.get(&job).cloned()?
    }

    fn account(&self, job: JobId) -> Option<Account> {
        self.told.with_usage(self.told.accounts.get(&job).cloned()?)
    }
}
