//! Jobs whose memory grows are reported, and moved in time.

use super::*;
use crate::rows::growth::{GrowthRow, OpenGrowth};
use tessera_frames::cluster::{AttemptMemory, ExitRecord, OomEvidence};
use tessera_model::life::ProgramExit;
use tessera_model::readings::{MemoryReading, MemoryReadings, ReadingUnit};
use tessera_model::sizing::{GrowthOutcome, MemoryPrediction, OOM_EXIT_CODE, next_size};

const HAD: Bytes = Bytes::from_mib(4_864);

/// A cluster with one job on its smallest slice, which may be moved.
fn rig(mode: MemoryPrediction, signal: Option<&str>) -> Rig {
    Rig::with(&[(1, slot("1g.5gb", 6), signal)], |snapshot| {
        for known in snapshot.launch_specs.values_mut() {
            Arc::make_mut(&mut known.spec).memory_prediction = Some(mode);
        }
        for live in &mut snapshot.live {
            live.gpu_memory = Some(HAD);
        }
    })
}

/// A job that uses 1,000 MiB, and 30 MiB more each second: its slice is full after 128 s.
fn used(second: u64) -> Bytes {
    Bytes::from_mib(1_000 + 30 * second + second % 2)
}

fn memory(seconds: std::ops::RangeInclusive<u64>) -> Input {
    let readings = seconds.map(|second| MemoryReading {
        at_unix: Millis::from_secs(second),
        position: second,
        used: used(second),
    });
    let memory = MemoryReadings {
        unit: ReadingUnit::Seconds,
        left_out: Bytes::ZERO,
        preallocated: false,
        readings: readings.collect(),
    };
    frame(ToController::Memory(vec![AttemptMemory { attempt: attempt(1), memory }]))
}

/// Sends a report for each second, and returns the rows with their seconds.
fn observe(rig: &mut Rig, until: u64) -> Vec<(u64, GrowthRow)> {
    let step = |second| {
        let round = rig.step(vec![memory(second..=second)], Millis::from_secs(second));
        round.jobs.growths.into_iter().map(move |row| (second, row)).collect::<Vec<_>>()
    };
    (1..=until).flat_map(step).collect()
}

fn stops(rig: &mut Rig, second: u64) -> Vec<StopCause> {
    let sent = rig.cluster.dispatch(START.plus(Millis::from_secs(second)));
    let causes = sent.into_iter().filter_map(|effect| match effect {
        RoundEffect::Send { frame, .. } => match *frame {
            ToAgent::Stop { cause, .. } => Some(cause),
            _ => None,
        },
        _ => None,
    });
    causes.collect()
}

fn ran_out(second: u64) -> (Input, Millis) {
    let record = ExitRecord {
        exit: Some(ProgramExit::Code(OOM_EXIT_CODE)),
        ..crate::rows::transitions::record_without_exit(Outcome::OutOfMemory, String::new())
    };
    assert_eq!(record.out_of_gpu_memory(), Some(OomEvidence::Reported));
    let status = AttemptStatus::Ended(record);
    let report = AttemptReport { attempt: attempt(1), job: job(1), status };
    (frame(ToController::Attempt(report)), Millis::from_secs(second))
}

#[test]
fn a_growth_is_reported_early_and_the_job_moved_when_its_checkpoint_needs_the_time() {
    let mut rig = rig(MemoryPrediction::Act, Some("USR1"));

    let rows = observe(&mut rig, 120);

    let [(reported, first), (moved, second)] = &rows[..] else { panic!("{rows:#?}") };
    assert!(*reported <= 8 && first.is_first && first.at_least.is_none(), "{first:?}");
    let event = first.event.as_deref().unwrap();
    assert!(event.contains("is predicted to exceed its 4.75 GiB in about"), "{event}");
    // 128 s, less 30 s for a checkpoint of unknown duration, 10 s of reports and a margin of 3 s.
    assert!((80..=90).contains(moved), "moved at {moved}");
    assert_eq!(second.at_least, Some(next_size(HAD)));
    assert_eq!(stops(&mut rig, 121), [StopCause::Grow]);
}

#[test]
fn a_moved_job_is_not_charged_and_goes_on_with_the_next_size() {
    let mut rig = rig(MemoryPrediction::Act, Some("USR1"));
    observe(&mut rig, 95);

    let done = rig.step(vec![ended(1, Outcome::Preempted)], Millis::from_secs(100));

    let end = &done.jobs.ended[0];
    assert!(!end.charged && !end.uncharged && end.to == JobState::Queued, "{end:?}");
    let [row] = &done.jobs.growths[..] else { panic!("{:?}", done.jobs.growths) };
    assert!(row.outcome.is_none() && row.curve.is_some(), "the next attempt decides its outcome");
    let waiting = rig.cluster.queue.queued(job(1)).unwrap();
    assert_eq!(waiting.own.at_least, Some(next_size(HAD)));
    let memory = waiting.memory.as_ref().unwrap();
    assert_eq!(memory.bytes, next_size(HAD));
    let why = crate::memory::evidence_text(memory);
    assert!(why.contains("predicted to run out of GPU memory"), "{why}");
    assert!(rig.cluster.watches.moved.contains_key(&job(1)));
}

#[test]
fn with_advice_alone_and_for_a_named_size_nothing_is_moved() {
    let mut advised = rig(MemoryPrediction::Advise, Some("USR1"));
    let rows = observe(&mut advised, 127);
    assert_eq!(rows.len(), 1, "{rows:#?}");
    assert!(rows[0].1.at_least.is_none() && stops(&mut advised, 128).is_empty());

    let mut off = rig(MemoryPrediction::Off, Some("USR1"));
    assert!(observe(&mut off, 127).is_empty());

    let mut named = Rig::with(&[(1, slot("1g.5gb", 6), Some("USR1"))], |snapshot| {
        for known in snapshot.launch_specs.values_mut() {
            let spec = Arc::make_mut(&mut known.spec);
            spec.memory_prediction = Some(MemoryPrediction::Act);
            spec.gpu = tessera_model::spec::GpuRequest::Profile("1g.5gb".parse().unwrap());
        }
        snapshot.live[0].gpu_memory = Some(HAD);
    });
    let rows = observe(&mut named, 127);
    assert_eq!(rows.len(), 1, "a job that names a slice keeps it: {rows:#?}");
}

#[test]
fn a_job_without_a_checkpoint_that_has_run_for_long_is_not_restarted() {
    let mut rig = rig(MemoryPrediction::Act, None);

    // A restart would lose its first 900 s, and its end is unknown.
    let rows = observe(&mut rig, 127);

    assert_eq!(rows.iter().filter(|(_, row)| row.is_first).count(), 1, "{rows:#?}");
    let moved: Vec<_> = rows.iter().filter(|(_, row)| row.at_least.is_some()).collect();
    assert!(moved.iter().all(|(second, _)| *second < 60), "early or never: {moved:#?}");
}

#[test]
fn every_end_is_judged() {
    let mut missed = rig(MemoryPrediction::Advise, None);
    let (end, at) = ran_out(5);
    let round = missed.step(vec![end], at);
    assert_eq!(round.jobs.growths[0].outcome, Some(GrowthOutcome::Missed));

    let mut right = rig(MemoryPrediction::Advise, Some("USR1"));
    observe(&mut right, 60);
    let (end, at) = ran_out(61);
    let round = right.step(vec![end], at);
    assert_eq!(round.jobs.growths[0].outcome, Some(GrowthOutcome::True));

    let mut late = rig(MemoryPrediction::Act, Some("USR1"));
    observe(&mut late, 60);
    let (end, at) = ran_out(61);
    let round = late.step(vec![end], at);
    assert_eq!(round.jobs.growths[0].outcome, Some(GrowthOutcome::Late));

    let mut wrong = rig(MemoryPrediction::Advise, Some("USR1"));
    observe(&mut wrong, 60);
    let round = wrong.step(vec![ended(1, Outcome::Succeeded)], Millis::from_secs(61));
    assert_eq!(round.jobs.growths[0].outcome, Some(GrowthOutcome::False));
    assert!(round.jobs.growths[0].curve.is_some());
}

#[test]
fn a_new_leader_continues_a_move_and_decides_the_outcome_of_an_earlier_one() {
    let earlier = attempt(77);
    let mut rig = Rig::with(&[(1, slot("1g.5gb", 6), Some("USR1"))], |snapshot| {
        let open = |attempt| OpenGrowth { job: job(1), attempt, capacity: HAD, moved: true };
        snapshot.growths = vec![open(attempt(1))];
        snapshot.live[0].gpu_memory = Some(HAD);
    });
    assert_eq!(stops(&mut rig, 3), [StopCause::Grow]);

    let mut later = Rig::with(&[(1, slot("2g.10gb", 4), Some("USR1"))], |snapshot| {
        let capacity = Bytes::from_mib(1_500);
        snapshot.growths =
            vec![OpenGrowth { job: job(1), attempt: earlier, capacity, moved: true }];
        snapshot.live[0].gpu_memory = Some(Bytes::from_mib(9_856));
    });
    let rows = observe(&mut later, 30);
    let judged: Vec<_> = rows.iter().filter(|(_, row)| row.outcome.is_some()).collect();
    let [(_, row)] = &judged[..] else { panic!("{judged:#?}") };
    assert_eq!((row.attempt, row.outcome), (earlier, Some(GrowthOutcome::True)));
}

#[test]
fn the_overview_has_the_curve_the_band_and_the_sizes() {
    let mut rig = rig(MemoryPrediction::Advise, Some("USR1"));
    observe(&mut rig, 40);

    let overview = rig.cluster.memory_overview(job(1), None, START);

    let live = overview.live.unwrap();
    assert_eq!((live.attempt, live.curve.points.len()), (attempt(1), 40));
    assert_eq!((live.mode, live.moving), (MemoryPrediction::Advise, false));
    let crossing = live.forecast.unwrap().crossing;
    assert!((126..=131).contains(&crossing), "{crossing}");
    assert_eq!(live.band.last().unwrap().position, crossing);
    assert_eq!(overview.sizes.first(), Some(&HAD));
    assert!(overview.sizes.len() >= 4, "{:?}", overview.sizes);
}
