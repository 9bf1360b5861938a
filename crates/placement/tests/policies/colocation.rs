//! Co-location under MPS, where speeds are predicted.

use tessera_model::mig::Profile;
use tessera_model::share::{MpsShare, SliceShare, SmPercent};
use tessera_model::{Bytes, JobId, Millis};
use tessera_placement::record::{RoundInput, RoundRecorder, RoundReplay};
use tessera_placement::{
    Account, ClusterView, Decision, GpuView, InstanceState, JobFacts, JobTable, Knowledge,
    MpsClient, Predictor, QueuedJob, RunTime, SharingRequest, SpeedBasis, SpeedRange, Tenancy,
    by_name, decide_round,
};

use crate::build::{IDLE, a100, cluster, gib, queue, short, why};

/// Each job is slowed by the sum of the others' busy parts; there is no prediction if one of them
/// is unknown.
#[derive(Clone, Copy, Debug)]
struct Slowed;

impl JobTable for Slowed {
    fn facts(&self, _: JobId) -> JobFacts {
        JobFacts::default()
    }

    fn account(&self, _: JobId) -> Option<Account> {
        None
    }
}

impl Predictor for Slowed {
    fn predict_run(&self, _: JobId, _: &GpuView, _: &Profile) -> Option<RunTime> {
        None
    }

    fn predict_speeds(
        &self,
        clients: &[MpsClient],
        basis: SpeedBasis,
        _: &GpuView,
        _: Option<&Profile>,
    ) -> Option<Vec<SpeedRange>> {
        assert_eq!(basis, SpeedBasis::SamePercentage, "a job that joins compares with its part");
        let busy: Option<Vec<u32>> = clients.iter().map(|c| c.busy.map(u32::from)).collect();
        let busy = busy?;
        let all: u32 = busy.iter().sum();
        let left = |own: &u32| SpeedRange::without_interval(1_000 - (all - own).min(999));
        Some(busy.iter().map(left).collect())
    }
}

fn sharer(online: bool, busy: impl Into<Option<u16>>) -> SharingRequest {
    let sm = SmPercent::try_from(30).unwrap();
    let share = SliceShare::Mps(MpsShare { sm, memory: Bytes::from_mib(1_024) });
    let client = MpsClient { online, sm, busy: busy.into() };
    SharingRequest { client: Some(client), ..SharingRequest::new("ada", share) }
}

fn has(number: u64, sharer: &SharingRequest) -> InstanceState {
    InstanceState::Shared(Tenancy::begun(JobId::from_number(number), sharer))
}

fn waits(sharer: SharingRequest) -> QueuedJob {
    let mut job = queue([gib(1)]).pop().unwrap();
    job.share = Some(sharer);
    job
}

fn outcome_of(policy: &str, cluster: &ClusterView, job: &QueuedJob) -> (String, String) {
    let policy = by_name(policy).unwrap();
    let mut jobs = [job].into_iter();
    let decided =
        decide_round(policy.as_ref(), cluster, Knowledge::of(&Slowed), &mut jobs, Millis::ZERO, 10);
    (short(cluster, &decided).join(" "), why(&decided[0]).summary.clone())
}

#[test]
fn a_job_joins_the_co_runners_with_which_it_adds_most() {
    let (loud, quiet) = (has(901, &sharer(false, 600)), has(902, &sharer(false, 100)));
    // The other co-runner has the tighter slice.
    let cluster = cluster([a100(&[("2g.10gb", 0, loud), ("3g.20gb", 4, quiet)])]);
    for policy in ["scheme-b", "static", "tessera"] {
        let (place, summary) = outcome_of(policy, &cluster, &waits(sharer(false, 200)));

        assert_eq!(place, "1: 3g.20gb@4 on 0", "{policy}");
        assert!(
            summary.contains("where it adds 70 % of the throughput of a job alone"),
            "{summary}"
        );
    }
}

#[test]
fn a_job_that_would_add_little_takes_its_own_slice_with_that_reason() {
    let loud = has(901, &sharer(false, 800));
    let cluster = cluster([a100(&[("2g.10gb", 0, loud), ("1g.5gb", 6, IDLE)])]);
    for policy in ["scheme-b", "static", "tessera"] {
        let (place, summary) = outcome_of(policy, &cluster, &waits(sharer(false, 100)));

        assert_eq!(place, "1: 1g.5gb@6 on 0", "{policy}");
        let words = "it doesn't join job 901: that would add 10 % of the throughput of a job alone";
        assert!(summary.contains(words), "{policy}: {summary}");
    }
}

#[test]
fn no_job_slows_an_online_job_and_a_waiting_one_gets_the_job_that_it_would_slow() {
    let service = has(901, &sharer(true, 100));
    let cluster = cluster([a100(&[("7g.40gb", 0, service)])]);

    let (waits_for, summary) = outcome_of("scheme-b", &cluster, &waits(sharer(false, 300)));

    assert_eq!(waits_for, "1: resources");
    let words = "it doesn't join job 901: job 901, an online job, would take 42 % longer";
    assert!(summary.contains(words), "{summary}");
    assert!(!summary.contains("priority"), "it helps nobody under MPS: {summary}");
    let (joins, _) = outcome_of("scheme-b", &cluster, &waits(sharer(false, 40)));
    assert_eq!(joins, "1: 7g.40gb@0 on 0", "5 % is what it may lose");
}

#[test]
fn where_nothing_is_predicted_the_users_request_decides() {
    let unknown = has(901, &sharer(false, None));
    let cluster = cluster([a100(&[("7g.40gb", 0, unknown)])]);

    let (joins, summary) = outcome_of("scheme-b", &cluster, &waits(sharer(false, 900)));

    assert_eq!(joins, "1: 7g.40gb@0 on 0");
    assert!(summary.ends_with("job 901 of ada has 30 % and 1 GiB of it"), "{summary}");
}

#[test]
fn a_recorded_round_is_decided_again_by_what_was_predicted_then() {
    let loud = has(901, &sharer(false, 800));
    let cluster = cluster([a100(&[("2g.10gb", 0, loud), ("1g.5gb", 6, IDLE)])]);
    let policy = by_name("tessera").unwrap();
    let job = waits(sharer(false, 100));
    let queue = [&job];
    let mut recorder = RoundRecorder::default();
    let answers = recorder.record_answers(Knowledge::of(&Slowed), &cluster, Millis::ZERO);
    let mut jobs = queue.into_iter();
    let decided =
        decide_round(policy.as_ref(), &cluster, answers.knowledge(), &mut jobs, Millis::ZERO, 10);
    assert!(matches!(decided[0], Decision::Start { .. }));
    let input = RoundInput { cluster: &cluster, queue: &queue, now: Millis::ZERO, starts_max: 10 };
    let pending = recorder.prepare_record(policy.as_ref(), input, answers, &decided);
    let record = recorder.keep_record(pending);
    let text = serde_json::to_string(&record).unwrap();
    assert!(text.contains("together"), "{text}");

    let stored = serde_json::from_str(&text).unwrap();
    let again = RoundReplay::default().read_record(stored, Some(policy.as_ref())).unwrap();

    assert_eq!(again.decided.as_ref(), Some(&again.recorded));
    assert_eq!(again.recorded, decided);
}
