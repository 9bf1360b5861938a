//! Attempts as real processes, under a real agent, ordered by a controller of the test's own.

use crate::common::{Cluster, LogRead, Place, WholeGpuStage, order, shell};
use tessera_frames::cluster::{ArrayPosition, LaunchOrder, LogStream, StopCause, ToAgent};
use tessera_model::life::{Outcome, ProgramExit};
use tessera_model::spec::{JobProgram, OutputPaths};
use tessera_model::{JobId, Millis};

async fn output(stage: &WholeGpuStage, order: &LaunchOrder) -> String {
    match stage.session.read_log(order.attempt, LogStream::Stdout, true).await {
        LogRead::Text(text, length) => {
            assert_eq!(u64::try_from(text.len()).unwrap(), length);
            text
        }
        LogRead::Unknown(reason) => panic!("{reason}"),
    }
}

#[tokio::test]
async fn a_program_runs_and_its_exit_status_usage_and_output_arrive() {
    let mut stage = WholeGpuStage::start().await;
    let order = shell(&stage.place, "echo out; echo err >&2; exit 3");

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::Failed);
    assert_eq!(record.exit, Some(ProgramExit::Code(3)));
    assert!(record.ended_unix >= record.started_unix && record.started_unix > Millis::ZERO);
    assert!(record.max_rss.get() > 0);
    // One log by default, under both names.
    assert_eq!(output(&stage, &order).await, "out\nerr\n");
    assert_eq!(
        stage.session.read_log(order.attempt, LogStream::Stderr, false).await,
        LogRead::Text("out\nerr\n".into(), 8)
    );
}

#[tokio::test]
async fn a_program_sees_its_slice_its_job_and_nothing_of_the_agents_environment() {
    let mut stage = WholeGpuStage::start().await;
    let mut order = order(&stage.place, &["/usr/bin/env"]);
    order.run.env.insert("MINE".into(), "1".into());
    order.array =
        Some(ArrayPosition { array: JobId::from_number(40), index: 2, count: 3, min: 0, max: 2 });

    stage.session.run(&order).await;

    let text = output(&stage, &order).await;
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line} in {text}");
    has(&format!("CUDA_VISIBLE_DEVICES={}", stage.place.slice));
    has("MINE=1");
    has("TESSERA_JOB_ID=42");
    has("SLURM_ARRAY_TASK_ID=2");
    has("TESSERA_NODE=n1");
    has(&format!("TESSERA_ATTEMPT_ID={}", order.attempt));
    assert!(text.contains("TESSERA_SIM_NODE="), "handed on: {text}");
    assert!(!text.contains("CARGO"), "{text}");
}

#[tokio::test]
async fn a_script_runs_in_the_attempts_own_folder_with_its_input_closed() {
    let mut stage = WholeGpuStage::start().await;
    let mut order = order(&stage.place, &[]);
    order.run.program = JobProgram::Script("#!/bin/sh\ncat; pwd\n".into());

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    let folder = format!("attempts/{}\n", order.attempt.as_uuid().hyphenated());
    assert!(output(&stage, &order).await.ends_with(&folder));
}

#[tokio::test]
async fn what_cannot_be_launched_fails_with_the_reason() {
    let mut stage = WholeGpuStage::start().await;
    let folder = stage.cluster.folder.path().display().to_string();
    std::fs::write(format!("{folder}/text"), "no program").unwrap();
    let noise = format!("{folder}/noise");
    std::fs::write(&noise, "no program either").unwrap();
    std::process::Command::new("chmod").arg("755").arg(&noise).status().unwrap();
    let place = stage.place.clone();
    let with = |change: &dyn Fn(&mut LaunchOrder)| {
        let mut changed = order(&place, &["/bin/true"]);
        change(&mut changed);
        changed
    };
    let cases = [
        (order(&place, &["/no/such/thing"]), "no such program: /no/such/thing"),
        (order(&place, &["no-such-thing"]), "no such program: no-such-thing (searched in /usr"),
        (order(&place, &[&format!("{folder}/text")]), "not executable"),
        (order(&place, &[&noise]), "neither a program of this machine nor a script"),
        (
            with(&|o| o.run.program = JobProgram::Script("#!/no/interpreter\n".into())),
            "interpreter",
        ),
        (
            with(&|o| o.run.work_dir = Some("/no/folder".into())),
            "no such working folder: /no/folder",
        ),
        (
            with(&|o| o.run.output.stdout = Some("/no/folder/out".into())),
            "no such folder for the output file /no/folder/out",
        ),
    ];
    for (order, expected) in cases {
        let record = stage.session.run(&order).await;

        assert_eq!(record.outcome, Outcome::LaunchFailed, "{record:?}");
        assert!(record.detail.contains(expected), "{expected:?} in {record:?}");
        assert_eq!(record.exit, None);
    }
}

#[tokio::test]
async fn the_folder_of_an_output_may_be_made_after_the_job_was_submitted() {
    let mut stage = WholeGpuStage::start().await;
    let folder = stage.cluster.folder.path().join("late");
    let mut order = order(&stage.place, &["/bin/echo", "here"]);
    order.run.output.stdout = Some(folder.join("out").display().to_string());

    stage.session.launch(&order).await;
    std::fs::create_dir(&folder).unwrap();
    let record = stage.session.until_ended(order.attempt).await;

    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    assert_eq!(std::fs::read_to_string(folder.join("out")).unwrap(), "here\n");
}

#[tokio::test]
async fn a_stopped_program_gets_its_grace_and_then_is_killed() {
    let mut stage = WholeGpuStage::start().await;
    let polite =
        shell(&stage.place, "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done");
    let deaf = shell(&stage.place, "trap '' TERM; echo up; while :; do sleep 0.01; done");

    for (order, cause, outcome, exit) in [
        (&polite, StopCause::Cancel, Outcome::Cancelled, ProgramExit::Code(5)),
        (&deaf, StopCause::Preempt, Outcome::Preempted, ProgramExit::Signal(9)),
    ] {
        stage.session.launch(order).await;
        stage.session.until_running(order.attempt).await;
        up(&stage, order).await;
        stage.session.send(ToAgent::Stop { epoch: 1, attempt: order.attempt, cause }).await;
        let record = stage.session.until_ended(order.attempt).await;

        assert_eq!((record.outcome, record.exit), (outcome, Some(exit)), "{record:?}");
    }
    // The signal is for the whole group: the shell may report the end of its `sleep` in the same log.
    let text = output(&stage, &polite).await;
    let own: Vec<&str> = text.lines().filter(|line| *line != "Terminated").collect();
    assert_eq!(own, ["up", "bye"], "{text}");
}

/// Waits for the program's first word: from then on its traps are set.
async fn up(stage: &WholeGpuStage, order: &LaunchOrder) {
    let path =
        stage.agent.data.join(format!("outputs/{}.out", order.attempt.as_uuid().hyphenated()));
    crate::common::eventually("the program is up", || {
        std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with("up"))
    })
    .await;
}

#[tokio::test]
async fn a_program_that_runs_too_long_is_timed_out() {
    let mut stage = WholeGpuStage::start().await;
    let mut order = shell(&stage.place, "sleep 60");
    order.run.time_limit = Some(Millis::new(300));

    let begun = tokio::time::Instant::now();
    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::TimedOut);
    // It counts from the order.
    assert!(begun.elapsed().as_millis() >= 300, "{record:?}");
}

#[tokio::test]
async fn what_a_program_leaves_behind_dies_with_it() {
    for groups in [true, false] {
        let cluster = Cluster::new();
        let data = cluster.enrol("n1");
        let config = data.join("agent.toml");
        std::fs::write(&config, format!("cgroups = {groups}\n")).unwrap();
        let _agent = cluster.start_with(&data, |command| {
            command.env("TESSERA_SIM_MIG", "off").arg("--config").arg(&config);
        });
        let mut session = cluster.welcome().await;
        let place = Place::on(&session.gpu("A100"));
        let order = shell(&place, "setsid sleep 60 & echo $!");

        let record = session.run(&order).await;

        assert_eq!(record.outcome, Outcome::Succeeded);
        let LogRead::Text(text, _) = session.read_log(order.attempt, LogStream::Stdout, true).await
        else {
            panic!("no output")
        };
        let pid = text.trim().parse().unwrap();
        crate::common::eventually("the daemon is dead", || !crate::common::runs(pid)).await;
        // The shepherd is used again, and what it killed before harms nobody.
        let next = session.run(&crate::common::order(&place, &["/bin/true"])).await;
        assert_eq!(next.outcome, Outcome::Succeeded, "{next:?}");
    }
}

#[tokio::test]
async fn output_goes_where_the_user_directed_it_and_a_restart_adds_to_it() {
    let mut stage = WholeGpuStage::start().await;
    let folder = stage.cluster.folder.path();
    let mut order = shell(&stage.place, "echo $TESSERA_ATTEMPT; echo oops >&2");
    order.run.work_dir = Some(folder.display().to_string());
    order.run.output = OutputPaths { stdout: Some("log-%j-%x".into()), stderr: None };

    stage.session.run(&order).await;
    let again = LaunchOrder {
        attempt: tessera_model::AttemptId::from_uuid(uuid::Uuid::now_v7()),
        number: 2,
        ..order.clone()
    };
    stage.session.run(&again).await;

    let text = std::fs::read_to_string(folder.join("log-42-test")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["1", "oops"], "{text}");
    assert!(lines[2].starts_with("--- tessera: attempt 2 of job 42"), "{text}");
    assert_eq!(lines[3..], ["2", "oops"], "{text}");
    assert_eq!(output(&stage, &order).await, text);
}

#[tokio::test]
async fn a_reader_follows_output_to_its_end() {
    let mut stage = WholeGpuStage::start().await;
    let order = shell(&stage.place, "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done");
    stage.session.launch(&order).await;
    stage.session.until_running(order.attempt).await;

    assert_eq!(output(&stage, &order).await, "1\n2\n3\n4\n5\n");
}

#[tokio::test]
async fn output_of_nobody_is_unknown() {
    let stage = WholeGpuStage::start().await;
    let nobody = order(&stage.place, &["/bin/true"]).attempt;

    let read = stage.session.read_log(nobody, LogStream::Stdout, true).await;

    assert!(matches!(read, LogRead::Unknown(_)), "{read:?}");
}

#[tokio::test]
async fn a_launch_on_a_slice_that_is_not_there_is_refused() {
    let mut stage = WholeGpuStage::start().await;
    let mut order = order(&stage.place, &["/bin/true"]);
    order.slice = "GPU-00000000-0000-0000-0000-000000000000".parse().unwrap();

    let record = stage.session.run(&order).await;

    assert_eq!(record.outcome, Outcome::NotStarted, "{record:?}");
}
