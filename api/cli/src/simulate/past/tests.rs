use super::*;
use tessera_api_types::{AccountUsage, PastGang, UsageReport};

fn at(secs: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000 + secs).unwrap()
}

fn period() -> HistoryPeriod {
    HistoryPeriod { since: at(0), until: at(1_000) }
}

fn gpus() -> Vec<PastGpu> {
    let gpu = |number: u32, model: &str| PastGpu {
        id: format!("GPU-{number}"),
        node: format!("n{number}"),
        model: model.to_owned(),
        mig: true,
    };
    vec![gpu(0, "a100-40gb"), gpu(1, "a100-40gb"), gpu(2, "a30-24gb")]
}

fn run(profile: &str, from: i64, to: Option<i64>, state: &str) -> PastAttempt {
    PastAttempt {
        node: "n1".into(),
        gpu: "GPU-0".into(),
        gpu_index: 0,
        gpu_model: Some("a100-40gb".into()),
        profile: profile.into(),
        start_slice: Some(0),
        shared: false,
        state: state.into(),
        placed_at: at(from),
        started_at: Some(at(from)),
        ended_at: to.map(at),
        gpu_energy_millijoules: Some(1_000),
        gpu_memory_peak_bytes: None,
    }
}

fn job(id: u64, attempts: Vec<PastAttempt>) -> PastJob {
    PastJob {
        id,
        name: format!("job{id}"),
        user: "ada".into(),
        class: "offline".into(),
        priority: 5,
        gpu_memory_bytes: Some(4 << 30),
        gpu_profile: None,
        gpu_whole: false,
        share: "exclusive".into(),
        task: None,
        movable: false,
        time_limit_secs: None,
        deadline: None,
        state: "succeeded".into(),
        submitted_at: at(10),
        ended_at: attempts.last().and_then(|attempt| attempt.ended_at),
        gang: None,
        attempts,
    }
}

fn a100(past: &RecordedHistory, job: usize) -> &SliceTimes {
    &past.workload.jobs[job].times["a100-40gb"]
}

#[test]
fn a_measured_time_stands_on_its_slice_and_the_rule_fills_the_others() {
    let jobs = vec![job(1, vec![run("2g.10gb", 20, Some(120), "succeeded")])];

    let past = past(jobs, &gpus(), &PastAccounts::default(), &period()).unwrap();

    let times = a100(&past, 0);
    assert_eq!(times[&2], 100_000);
    assert!(times[&1] > 100_000, "half the compute: {times:?}");
    assert_eq!(times[&7], 100_000, "a larger one is not quicker: {times:?}");
    assert!(past.workload.jobs[0].times.contains_key("a30-24gb"));
    assert!(past.notes[0].starts_with("1 jobs' run times are measured"), "{:?}", past.notes);
    assert_eq!(past.cluster, "2xa100-40gb,1xa30-24gb");
}

#[test]
fn the_run_time_of_a_task_on_another_slice_is_used_before_the_rule() {
    let on = |id, profile, secs: i64| PastJob {
        task: Some("train".into()),
        ..job(id, vec![run(profile, 20, Some(20 + secs), "succeeded")])
    };

    let past = past(
        vec![on(1, "1g.5gb", 90), on(2, "7g.40gb", 30)],
        &gpus(),
        &PastAccounts::default(),
        &period(),
    )
    .unwrap();

    assert_eq!((a100(&past, 0)[&1], a100(&past, 0)[&7]), (90_000, 30_000));
    assert_eq!((a100(&past, 1)[&1], a100(&past, 1)[&7]), (90_000, 30_000));
}

#[test]
fn the_recorded_outcome_is_listed_job_by_job() {
    let moved = PastJob {
        movable: true,
        ..job(
            1,
            vec![
                run("7g.40gb", 20, Some(50), "preempted"),
                run("1g.5gb", 60, Some(160), "succeeded"),
            ],
        )
    };
    let runs = job(2, vec![run("1g.5gb", 900, None, "running")]);
    let runs = PastJob { state: "running".into(), submitted_at: at(800), ..runs };

    let past = past(vec![runs, moved], &gpus(), &PastAccounts::default(), &period()).unwrap();

    let recorded = &past.recorded;
    let times = |at: usize| {
        let job = &recorded.jobs[at];
        (job.submit_ms, job.start_ms, job.end_ms, job.moves)
    };
    assert_eq!(times(0), (0, 10_000, 150_000, 1));
    assert_eq!(times(1), (790_000, 890_000, 990_000, 0));
    assert_eq!(a100(&past, 0)[&1], 130_000, "with what was put aside");
    assert_eq!((recorded.makespan_ms, recorded.millijoules), (990_000, 3_000));
    assert_eq!(recorded.segments.len(), 3);
    assert_eq!((recorded.segments[0].slices, recorded.segments[1].slices), (8, 1));
    let full = recorded.samples.iter().find(|sample| sample.at_ms == 10_000).unwrap();
    assert_eq!((full.used_per_mille, full.running), (8 * 1_000 / 20, 1));
    let has = |text: &str| past.notes.iter().any(|note| note.contains(text));
    assert!(
        has("1 jobs were still running") && has("1 jobs ran more than once"),
        "{:?}",
        past.notes
    );
}

#[test]
fn a_job_that_never_ran_is_simulated_only_if_its_task_is_known() {
    let never = |id, task: Option<&str>| PastJob {
        task: task.map(str::to_owned),
        state: "queued".into(),
        ended_at: None,
        ..job(id, Vec::new())
    };
    let ran = job(1, vec![run("1g.5gb", 20, Some(80), "succeeded")]);
    let ran = PastJob { task: Some("train".into()), ..ran };

    let past = past(
        vec![ran, never(2, Some("train")), never(3, None)],
        &gpus(),
        &PastAccounts::default(),
        &period(),
    )
    .unwrap();

    let names: Vec<&str> = past.workload.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["job1", "job2"]);
    assert_eq!(a100(&past, 1)[&1], 60_000);
    assert!(past.notes.iter().any(|note| note.starts_with("1 jobs never ran")), "{:?}", past.notes);
    assert!(past.notes.iter().any(|note| note.starts_with("1 jobs were still waiting")));
}

#[test]
fn a_gpu_of_no_known_model_is_refused_by_name() {
    let mut gpus = gpus();
    gpus[0].model = "Voodoo 2".into();

    let refused =
        past(Vec::new(), &gpus, &PastAccounts::default(), &period()).unwrap_err().to_string();

    assert!(refused.contains("Voodoo 2"), "{refused}");
}

#[test]
fn a_history_saved_as_a_file_reads_back_the_same() {
    let jobs = vec![
        job(1, vec![run("2g.10gb", 20, Some(120), "succeeded")]),
        PastJob { movable: true, ..job(2, vec![run("1g.5gb", 20, Some(81), "succeeded")]) },
    ];
    let past = past(jobs, &gpus(), &PastAccounts::default(), &period()).unwrap();
    let text = tessera_simulator::cluster::workload::file::write(&past.workload.jobs);

    let read = tessera_simulator::cluster::workload::file::read("past.jsonl", &text).unwrap();

    assert_eq!(read.jobs, past.workload.jobs);
}

#[test]
fn members_of_a_gang_are_simulated_together_and_a_torn_gang_is_left_out() {
    let gang = |first: u64, id: u64, secs: i64| PastJob {
        gang: Some(PastGang { id: first, nodes: 2, gpus_per_node: 1 }),
        ..job(id, vec![run("7g.40gb", 20, Some(20 + secs), "succeeded")])
    };
    let jobs = vec![gang(4, 4, 60), gang(4, 5, 61), gang(7, 7, 9)];

    let past = past(jobs, &gpus(), &PastAccounts::default(), &period()).unwrap();

    let ranks: Vec<_> = past.workload.jobs.iter().map(|job| job.gang.unwrap().rank).collect();
    assert_eq!(ranks, [0, 1]);
    assert_eq!((a100(&past, 0)[&7], a100(&past, 1)[&7]), (61_000, 61_000));
    assert!(
        past.notes.iter().any(|note| note.starts_with("1 jobs belong to gangs")),
        "{:?}",
        past.notes
    );
}

#[test]
fn time_limits_and_deadlines_are_passed_on_and_the_recorded_row_judges_by_them() {
    let due = |id, secs: i64, attempts| PastJob {
        time_limit_secs: Some(100),
        deadline: Some(at(secs)),
        ..job(id, attempts)
    };
    let ran = |to: i64, state: &str| vec![run("1g.5gb", 20, Some(to), state)];
    let jobs = vec![
        due(1, 130, ran(80, "succeeded")),
        due(2, 70, ran(80, "succeeded")),
        PastJob { state: "timed_out".into(), ..due(3, 500, ran(120, "timed_out")) },
        PastJob { state: "cancelled".into(), ..due(4, 500, ran(80, "cancelled")) },
        PastJob {
            state: "running".into(),
            ..due(5, 2_000, vec![run("1g.5gb", 20, None, "running")])
        },
    ];

    let past = past(jobs, &gpus(), &PastAccounts::default(), &period()).unwrap();

    let first = &past.workload.jobs[0];
    assert_eq!((first.limit_ms, first.deadline_ms), (Some(100_000), Some(120_000)));
    let judged = past.recorded.jobs.iter().map(|job| (job.in_time, job.timed_out));
    assert_eq!(
        judged.collect::<Vec<_>>(),
        [
            (Some(true), false),
            (Some(false), false),
            (Some(false), true),
            (None, false),
            (None, false)
        ]
    );
    assert!(past.notes.iter().any(|note| note.starts_with("5 jobs have time limits")));
}

#[test]
fn jobs_are_charged_to_their_users_accounts_and_the_differences_are_named() {
    let user = |user: &str| tessera_api_types::UserUsage {
        user: user.into(),
        recent_slice_secs: 9.0,
        held_slices: 0,
        quota_slices: None,
        running: 0,
        waiting: 0,
    };
    let account = |name: &str, named, quota_slices, users: &[&str]| AccountUsage {
        account: name.into(),
        named,
        share: if named { 3 } else { 1 },
        norm_shares: 0.5,
        recent_slice_secs: 9.0,
        effective_usage: 0.5,
        factor: 0.5,
        held_slices: 0,
        quota_slices,
        running: 0,
        waiting: 0,
        users: users.iter().map(|name| user(name)).collect(),
    };
    let report = |fair_share| UsageReport {
        fair_share,
        half_life_secs: Some(3_600.0),
        accounts: vec![
            account("lab", true, Some(7), &["ada", "cy"]),
            account("bob", false, None, &["bob"]),
        ],
    };
    let of = |id, user: &str| PastJob {
        user: user.into(),
        ..job(id, vec![run("1g.5gb", 20, Some(80), "succeeded")])
    };
    let past = |fair_share| {
        let accounts = PastAccounts::of(&report(fair_share));
        past(vec![of(1, "ada"), of(2, "bob"), of(3, "cy")], &gpus(), &accounts, &period()).unwrap()
    };

    let fair = past(true);
    let jobs = fair.workload.jobs.iter().map(|job| (job.account(), job.shares));
    assert_eq!(jobs.collect::<Vec<_>>(), [("lab", 3), ("bob", 1), ("lab", 3)]);
    let has =
        |past: &RecordedHistory, text: &str| past.notes.iter().any(|note| note.contains(text));
    assert!(has(&fair, "quotas") && has(&fair, "half-life"), "{:?}", fair.notes);
    assert!(has(&past(false), "does not order jobs by recent usage"));
}
