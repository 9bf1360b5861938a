//! Offline jobs that are sent back to the queue for online jobs.

use super::*;
use crate::rows::preemptions::{OpenPreemption, PreemptionOutcome, PreemptionRow, SentBackJob};
use crate::rows::submitted::SubmittedJob;
use tessera_model::spec::{Class, GpuRequest};
use tessera_placement::preemption::{PreemptionMode, PreemptionRules};

fn rules() -> PreemptionRules {
    PreemptionRules::default()
}

/// A cluster with one offline job on the whole GPU.
fn rig(signal: Option<&str>, mode: PreemptionMode) -> Rig {
    let mut rig = Rig::new(&[(1, slot("7g.40gb", 0), signal)]);
    rig.cluster.set_preemption_rules(PreemptionRules { online_over_offline: mode, ..rules() });
    rig
}

/// An online job enters the queue.
fn online(number: u64) -> Input {
    let mut spec = spec(None);
    (spec.class, spec.gpu) = (Class::Online, GpuRequest::Memory(Bytes::from_mib(4_000)));
    Input::Submitted(vec![SubmittedJob::new(job(number), &spec, None, 0)])
}

fn requests(round: &Round) -> Vec<JobId> {
    round.jobs.requested_preemptions().map(|request| request.job).collect()
}

fn stops(rig: &mut Rig, after: Millis) -> Vec<(AttemptId, StopCause)> {
    let sent = rig.cluster.dispatch(START.plus(after));
    let causes = sent.into_iter().filter_map(|effect| match effect {
        RoundEffect::Send { frame, .. } => match *frame {
            ToAgent::Stop { attempt, cause, .. } => Some((attempt, cause)),
            _ => None,
        },
        _ => None,
    });
    causes.collect()
}

fn usage(rig: &Rig, after: Millis) -> u64 {
    let accounting = &rig.cluster.accounting;
    let live = rig.cluster.attempts.of_job(job(1));
    let user = live.map_or_else(|| spec(None).user, |live| live.user.to_string());
    accounting.ledger.recent_usage(&user, &accounting.accounts, START.plus(after)).get() / 1_000
}

#[test]
fn an_offline_job_is_asked_for_a_checkpoint_and_its_place_goes_to_the_online_job() {
    let mut rig = rig(Some("USR1"), PreemptionMode::Checkpoint);

    let asked = rig.step(vec![online(2)], Millis::from_secs(100));

    assert_eq!(requests(&asked), [job(1)]);
    let why = &asked.jobs.requested_preemptions().next().unwrap().why.summary;
    assert!(why.starts_with("sent back to the queue for job 2 of the class online"), "{why}");
    assert!(why.contains("time 1 of 3 times at most"), "{why}");
    assert_eq!(stops(&mut rig, Millis::from_secs(100)), [(attempt(1), StopCause::Move)]);
    let waits = rig.step(vec![Input::Tick], Millis::from_secs(101));
    assert!(requests(&waits).is_empty(), "it is requested once");
    assert_eq!(
        usage(&rig, Millis::from_secs(101)),
        706,
        "seven slices for 101 s, slightly decayed"
    );

    let left = rig.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(110));

    let end = &left.jobs.ended[0];
    assert!(!end.charged && !end.uncharged && end.to == JobState::Queued, "{end:?}");
    assert_eq!(end.record.detail, "sent back to the queue for job 2 (online), with its checkpoint");
    let [PreemptionRow::Ended { outcome, uncharged, .. }] = left.jobs.preemptions[..] else {
        panic!("{:?}", left.jobs.preemptions)
    };
    assert_eq!((outcome, uncharged), (PreemptionOutcome::SentBack, Millis::from_secs(10)));
    assert_eq!(usage(&rig, Millis::from_secs(110)), 699, "the checkpoint is free");
    let placed: Vec<JobId> = left.jobs.reservations.iter().map(|placed| placed.job).collect();
    assert_eq!(placed[0], job(2), "the online job is first");
    assert!(left.jobs.reservations[0].why.summary.contains("(job 1)"));
}

#[test]
fn a_job_without_a_checkpoint_is_stopped_only_where_the_operator_allows_it_and_pays_nothing() {
    let mut rig = rig(None, PreemptionMode::Checkpoint);
    let round = rig.step(vec![online(2)], Millis::from_secs(100));
    assert!(requests(&round).is_empty());
    let why = rig.cluster.explain_waiting(job(2), START.plus(Millis::from_secs(100))).unwrap();
    assert!(why.why.summary.contains("1 × writes no checkpoint"), "{}", why.why.summary);

    rig.cluster.set_preemption_rules(PreemptionRules {
        online_over_offline: PreemptionMode::Requeue,
        ..rules()
    });
    let asked = rig.step(vec![Input::Tick], Millis::from_secs(102));

    assert_eq!(requests(&asked), [job(1)]);
    assert_eq!(stops(&mut rig, Millis::from_secs(102)), [(attempt(1), StopCause::Preempt)]);
    let left = rig.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(103));
    let end = &left.jobs.ended[0];
    assert!(!end.charged && !end.uncharged && end.to == JobState::Queued, "{end:?}");
    assert_eq!(usage(&rig, Millis::from_secs(103)), 0, "all of the lost attempt is free");
    let why = rig.cluster.explain_waiting(job(1), START.plus(Millis::from_secs(105))).unwrap();
    let note = "sent back to the queue 2 s ago for job 2 of the class online (1 of 3 times at most";
    assert!(why.why.summary.contains(note), "{}", why.why.summary);
}

#[test]
fn a_new_leader_repeats_the_request_and_keeps_the_place() {
    let place = JobPlacement {
        gpu: GPU.parse().unwrap(),
        slot: Some(slot("1g.5gb", 6)),
        steps: Vec::new(),
        part: None,
        share: None,
    };
    let mut rig = Rig::with(&[(1, slot("7g.40gb", 0), Some("USR1"))], |snapshot| {
        let mut spec = spec(None);
        (spec.class, spec.gpu) = (Class::Online, GpuRequest::Memory(Bytes::from_mib(4_000)));
        snapshot.waiting.push(SubmittedJob::new(job(2), &spec, None, 0));
        snapshot.preemptions.push(OpenPreemption {
            attempt: attempt(1),
            by: job(2),
            saves: true,
            place,
            ago: Millis::from_secs(4),
        });
        let (times, waits_since) = (2, None);
        snapshot.sent_back.push(SentBackJob { job: job(1), times, by: job(7), waits_since });
    });
    rig.cluster.set_preemption_rules(rules());

    assert_eq!(stops(&mut rig, Millis::ZERO), [(attempt(1), StopCause::Move)]);
    let left = rig.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(5));

    assert_eq!(left.jobs.reservations[0].job, job(2));
    let [PreemptionRow::Ended { outcome: PreemptionOutcome::SentBack, uncharged, .. }] =
        left.jobs.preemptions[..]
    else {
        panic!("{:?}", left.jobs.preemptions)
    };
    assert_eq!(uncharged, Millis::from_secs(9), "since the first request");
    assert_eq!(rig.cluster.migrations.preemptions.times(job(1)), 3);
}

#[test]
fn a_job_that_succeeds_before_it_leaves_has_succeeded() {
    let mut rig = rig(None, PreemptionMode::Requeue);
    rig.step(vec![online(2)], Millis::from_secs(100));

    let done = rig.step(vec![ended(1, Outcome::Succeeded)], Millis::from_secs(101));

    assert_eq!(done.jobs.ended[0].to, JobState::Succeeded);
    let [PreemptionRow::Ended { outcome, .. }] = done.jobs.preemptions[..] else {
        panic!("{:?}", done.jobs.preemptions)
    };
    assert_eq!(outcome, PreemptionOutcome::Ended);
    assert_eq!(done.jobs.reservations[0].job, job(2));
}
