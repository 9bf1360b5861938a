//! The controller's process around the real core, which works like `actors::placer`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tessera_model::lease::LeaseTerms;
use tessera_model::life::{JobState, Outcome};
use tessera_model::{ControllerId, Millis, NodeId};
use tessera_placement::preemption::{PreemptionMode, PreemptionRules};
use tessera_placement::record::RoundRecord;
use tessera_placement::{KernelLengths, Policy, TaskLoad};
use uuid::Uuid;

use super::super::accounts::{AccountSettings, Accounts};
use super::checks;
use super::events::LIGHT_TASK;
use super::restless::Restless;
use super::world::{LEASE, World};
use crate::commands::CommandResult;
use crate::input::Input;
use crate::round::Round;
use crate::round::RoundEffect;
use crate::rows::findings::CommitFindings;
use crate::rows::preemptions::{PreemptionOutcome, PreemptionRow};
use crate::rows::snapshot::StoreSnapshot;
use crate::rows::submitted::SubmittedJob;
use crate::state::ClusterState;

/// An explanation is requested once for this many recorded rounds, since it takes as long as many
/// rounds.
const EXPLAINED_EACH: u64 = 16;

/// Class rules that allow everything: a job without a checkpoint may be sent back, too.
pub(super) const PREEMPTION: PreemptionRules = PreemptionRules {
    online_over_offline: PreemptionMode::Requeue,
    min_run: Millis::from_secs(20),
    most_per_job: 2,
    patience: Millis::ZERO,
};

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Commit {
    Done,
    FailsBefore,
    /// It took effect, but its result is lost.
    AnswerLost,
}

/// The controller's process, which works like `actors::placer`.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) cluster: ClusterState,
    pub(super) inbox: Vec<Input>,
    pub(super) committing: Option<Round>,
    /// A snapshot that was read and is not used yet.
    pub(super) reloading: Option<StoreSnapshot>,
    pub(super) sessions: BTreeMap<NodeId, u64>,
    /// Accepted jobs that the placer does not know yet.
    pub(super) submitted: VecDeque<Vec<SubmittedJob>>,
}

fn cluster(policy: &str, epoch: u64, snapshot: StoreSnapshot, now: Millis) -> ClusterState {
    let controller = ControllerId::from_uuid(Uuid::from_u128(1));
    let terms = LeaseTerms::from_length(LEASE).unwrap();
    let mut cluster = ClusterState::new(epoch, controller, terms, policy_of(policy), snapshot, now);
    let measured = ["ada", "bob"].map(|user| {
        let lengths = KernelLengths { typical_gap_us: 12_000, ..KernelLengths::UNKNOWN };
        let load = TaskLoad { busy: 300, lengths };
        (format!("{user}: {LIGHT_TASK}"), load)
    });
    cluster.record_task_load(measured.into());
    cluster.set_preemption_rules(PREEMPTION);
    // Two users with fair share, one of them in an account with more shares.
    let terms = AccountSettings {
        members: vec!["bob".to_owned()],
        coordinators: Vec::new(),
        share: 2,
        quota: None,
    };
    let lab = BTreeMap::from([("lab".to_owned(), terms)]);
    let accounts = Accounts::new(BTreeMap::new(), lab, Some(Accounts::HALF_LIFE)).unwrap();
    cluster.set_accounts(accounts, vec![("ada".to_owned(), Millis::from_secs(60))], now);
    cluster
}

fn policy_of(name: &str) -> Box<dyn Policy> {
    tessera_placement::by_name(name).unwrap_or_else(|| Box::new(Restless))
}

impl Controller {
    pub(super) fn new(policy: &str, epoch: u64, snapshot: StoreSnapshot, now: Millis) -> Self {
        Self {
            cluster: cluster(policy, epoch, snapshot, now),
            inbox: Vec::new(),
            committing: None,
            reloading: None,
            sessions: BTreeMap::new(),
            submitted: VecDeque::new(),
        }
    }
}

impl World {
    /// The placer receives an input, like its message handlers.
    pub(super) fn input(&mut self, input: Input) {
        let stands = self.controller.reloading.is_none();
        // A reload requests reports from agents again and refuses commands; only accepted jobs are
        // kept.
        if stands || matches!(input, Input::Submitted(_)) {
            self.controller.inbox.push(input);
        }
    }

    /// The placer begins a round, if none is under way.
    pub(super) fn begin_round(&mut self) {
        if self.controller.committing.is_some() || self.controller.reloading.is_some() {
            return;
        }
        let inputs = std::mem::take(&mut self.controller.inbox);
        for input in inputs.iter().filter(|input| !matches!(input, Input::Tick)) {
            let text: String = format!("{input:?}").chars().take(160).collect();
            self.note("the placer took", text);
        }
        let ids = &mut self.ids;
        let mut new_id = || {
            *ids += 1;
            Uuid::from_u128(*ids)
        };
        let round = self.controller.cluster.step(inputs, self.now, &mut new_id);
        assert_eq!(round.rollback, None, "the store was never rolled back");
        self.controller.cluster.check_ledger();
        if round.is_empty() {
            self.act(round, CommitFindings::default());
        } else {
            self.controller.committing = Some(round);
        }
    }

    /// The commit under way ends.
    pub(super) fn end_round(&mut self, how: Commit) {
        let Some(round) = self.controller.committing.take() else { return };
        let epoch = self.controller.cluster.epoch();
        if how == Commit::FailsBefore {
            self.note("a commit failed", ());
            return self.reload();
        }
        let findings = match self.store.commit(&round, epoch) {
            Ok(findings) => findings,
            Err(problem) => panic!("the cluster state and the store differ: {problem}\n{round:#?}"),
        };
        self.decide_again(&round);
        let round_number = round.record.as_ref().map(|record| record.number);
        if how == Commit::AnswerLost {
            self.note("a commit's answer was lost", ());
            self.forget_moved(&round);
            return self.reload();
        }
        for (node, generation, lost) in &round.nodes.generations {
            if *lost {
                self.note("a node was declared lost", (node, generation));
                if round.jobs.ended.iter().any(|ended| ended.from == JobState::Running) {
                    self.note("a running job was declared lost", node);
                }
            }
        }
        self.note_gangs(&round);
        for migrating in &round.jobs.migrations {
            self.note("a job was requested to move", (migrating.job, &migrating.place));
        }
        for request in round.jobs.requested_preemptions() {
            self.note("a job was requested to leave for an online one", (request.job, request.by));
            let live = self.controller.cluster.attempts.of_job(request.job);
            if live.is_some_and(|live| live.gang.is_some()) {
                self.note("a gang was requested to leave for an online job", request.job);
            }
        }
        for row in &round.jobs.preemptions {
            match row {
                PreemptionRow::Ended { outcome: PreemptionOutcome::SentBack, .. } => {
                    self.note("a job was sent back for an online one", row);
                }
                PreemptionRow::Resumed { .. } => self.note("a job that was sent back resumed", row),
                PreemptionRow::Requested(_) | PreemptionRow::Ended { .. } => {}
            }
        }
        for growth in round.jobs.growths.iter().filter(|growth| growth.at_least.is_some()) {
            self.note("a growing job was requested to move", (growth.job, growth.at_least));
        }
        for reserved in &round.jobs.reservations {
            if self.store.migrated.contains(&reserved.job) {
                self.note("a job moved", (reserved.job, &reserved.place));
            }
        }
        if self.controller.cluster.migrations.has_reluctant_jobs() {
            self.note("a move was given up", ());
        }
        if round.overrides.events.iter().any(|event| event.kind == "layout_done") {
            self.note("an operator's layout was completed", ());
        }
        self.act(round, findings);
        checks::check_state_equals_store(self);
        if round_number.is_some_and(|number| number.is_multiple_of(EXPLAINED_EACH)) {
            checks::a_question_apart_has_the_same_answer(self);
        }
    }

    fn note_gangs(&mut self, round: &Round) {
        let gangs: BTreeSet<_> = round.jobs.reservations.iter().filter_map(|r| r.gang).collect();
        for gang in gangs {
            self.note("a gang was placed", gang);
        }
        for ended in round.jobs.ended.iter().filter(|ended| ended.gang == Some(ended.job)) {
            match ended.to {
                JobState::Queued => self.note("a gang was requeued together", ended.job),
                JobState::Succeeded => self.note("a gang ended", ended.job),
                _ => self.note("a gang was given up", (ended.job, ended.to)),
            }
        }
        let lost = round
            .jobs
            .ended
            .iter()
            .filter(|ended| ended.gang.is_some() && ended.record.outcome == Outcome::Lost);
        for ended in lost {
            self.note("a gang lost a member", (ended.gang, ended.job, ended.from));
        }
    }

    /// A job may be changed before its announcement by a commit whose answer is lost. Its
    /// announcement then causes one more reload, which is rare and harmless.
    fn forget_moved(&mut self, round: &Round) {
        let jobs: Vec<_> = round.jobs.commands.iter().map(|command| command.job).collect();
        let left = |submitted: &Vec<SubmittedJob>| submitted.iter().all(|f| !jobs.contains(&f.job));
        self.controller.submitted.retain(left);
        self.controller.inbox.retain(|input| match input {
            Input::Submitted(submitted) => left(submitted),
            _ => true,
        });
    }

    /// Decides a stored round again, from its record alone.
    fn decide_again(&mut self, round: &Round) {
        let Some(record) = &round.record else { return };
        let text = serde_json::to_string(&**record).unwrap();
        let read: RoundRecord = serde_json::from_str(&text).unwrap();
        let policy = policy_of(self.policy);

        let again = self.replay.read_record(read, Some(policy.as_ref())).unwrap();

        assert_eq!(again.difference(), None);
        assert_eq!(again.digest, Some(record.digest()));
        self.note("a round was decided again", record.number);
    }

    fn reload(&mut self) {
        self.controller.inbox.retain(|input| matches!(input, Input::Submitted(_)));
        self.tokens.clear();
        self.controller.reloading = Some(self.store.snapshot());
    }

    /// Rebuilds the state from the snapshot that was read.
    pub(super) fn end_reload(&mut self) {
        let Some(snapshot) = self.controller.reloading.take() else { return };
        let epoch = self.controller.cluster.epoch();
        self.controller.cluster.reload(epoch, snapshot, self.now);
        self.controller.sessions.clear();
        let open: Vec<_> = self.links.keys().copied().collect();
        open.into_iter().for_each(|session| self.refuse(session));
    }

    fn act(&mut self, round: Round, mut findings: CommitFindings) {
        for (token, results) in round.complete_answers(&findings) {
            let Some(jobs) = self.tokens.remove(&token) else { continue };
            assert_eq!(results.len(), jobs.len(), "each job has its answer");
            let lost = results.contains(&CommandResult::NotFound);
            assert!(!lost, "an accepted job vanished (V5): {jobs:?} {results:?}");
        }
        self.controller.cluster.remember_commanded(&round, &findings, self.now);
        let requeued = findings.take_requeued();
        self.controller.cluster.set_launch_specs(findings.launch_specs, &HashMap::new());
        for effect in round.effects {
            self.carry_out(effect);
        }
        for effect in self.controller.cluster.dispatch(self.now) {
            self.carry_out(effect);
        }
        if let Some(requeued) = requeued {
            self.note("a held job was released", ());
            self.controller.inbox.insert(0, requeued);
        }
    }

    fn carry_out(&mut self, effect: RoundEffect) {
        match effect {
            RoundEffect::Send { node, frame } => {
                let session = self.controller.sessions.get(&node).copied();
                let link = session.and_then(|session| self.links.get_mut(&session));
                if let Some(link) = link.filter(|link| !link.broken) {
                    link.down.push_back(*frame);
                }
            }
            RoundEffect::Refuse { session, .. } => self.refuse(session),
            RoundEffect::Bind { node, session } => {
                if let Some(old) = self.controller.sessions.insert(node, session) {
                    self.refuse(old);
                }
            }
            RoundEffect::Moved(_) => {}
        }
    }

    /// The controller's process dies, and another one starts from the store.
    pub(super) fn crash_controller(&mut self) {
        self.note("the controller crashed", ());
        if self.random.happens(50)
            && let Some(round) = self.controller.committing.take()
        {
            // The database finishes its running transaction.
            if self.store.commit(&round, self.controller.cluster.epoch()).is_ok() {
                self.decide_again(&round);
            }
        }
        self.store.epoch += 1;
        let snapshot = self.store.snapshot();
        self.controller = Controller::new(self.policy, self.store.epoch, snapshot, self.now);
        self.tokens.clear();
        for link in self.links.values_mut() {
            (link.broken, link.controller_holds) = (true, false);
            link.up.clear();
            link.down.clear();
        }
        self.links.retain(|_, link| link.agent_holds);
    }
}
