//! What the store keeps, as the API shows it.

use std::time::Duration;

use reqwest::Response;
use serde_json::json;
use tessera_api_types::{
    DecisionPage, DecisionView, JobCounts, JobDetail, JobEvents, JobExplanation, JobPage,
    JobRecord, JobRecords, JobView, LayoutPlans, StepReceipt,
};
use tessera_control::answers::WaitReasonRun;
use tessera_controller::ports::ToPlacer;
use tessera_controller::principal::Role;
use tessera_frames::cluster::{AttemptFigures, GpuFigures};
use tessera_model::{AttemptId, Bytes, JobId, Millis};
use uuid::Uuid;

use super::rig::{Rig, problem};
use super::seed::{GPU, NODE, Seed};

async fn numbers(rig: &Rig, query: &str) -> Vec<u64> {
    let page: JobPage = rig.get(&format!("/v1/jobs?{query}")).await.json().await.unwrap();
    page.items.iter().map(|job| job.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_newest_first_and_filtered() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 3, Some(0), "bob").await;
    seed.submission(5, 1, None, "ada").await;
    seed.node().await;
    seed.running(3, 1).await;
    seed.state(4, "cancelled").await;

    assert_eq!(numbers(&rig, "").await, [5, 4, 3, 2, 1]);
    assert_eq!(numbers(&rig, "state=active").await, [5, 3, 2, 1]);
    assert_eq!(numbers(&rig, "state=running,cancelled").await, [4, 3]);
    assert_eq!(numbers(&rig, "state=running").await, [3]);
    assert_eq!(numbers(&rig, "user=ada").await, [5, 1]);
    assert_eq!(numbers(&rig, "name=job+of+bob&state=queued").await, [2]);
    assert_eq!(numbers(&rig, "array=2").await, [4, 3, 2]);
    assert_eq!(numbers(&rig, "node=node-1").await, [3]);
    assert_eq!(numbers(&rig, "node=node-2").await, [0; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_waiting_tasks_are_the_same_folded_as_one_by_one() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 6, Some(0), "ada").await;
    seed.submission(8, 3, Some(1), "bob").await;
    // Its tasks have the indexes 1, 4 and 5.
    seed.run(sqlx::query(
        "UPDATE submissions SET spec = (spec::jsonb || '{\"array\": {\"indexes\": [1, 4, 5]}}')::json
          WHERE first_job = 8",
    ))
    .await;
    seed.node().await;
    seed.running(4, 1).await;
    seed.state(7, "held").await;
    seed.state(10, "cancelled").await;
    for (decision, reason) in [(0x20, "resources"), (0x21, "priority")] {
        seed.decision(Uuid::from_u128(decision), 1, "wait", Some(reason), None).await;
    }
    let records = async |query: &str| -> Vec<JobRecord> {
        let records: JobRecords =
            rig.get(&format!("/v1/records?{query}")).await.json().await.unwrap();
        assert!(!records.truncated);
        records.jobs
    };
    let ids = |records: &[JobRecord]| records.iter().map(|job| job.id).collect::<Vec<_>>();

    let all = records("reasons=true").await;
    assert_eq!(ids(&all), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(all[0].reason.as_deref(), Some("priority"), "the newest one");
    assert_eq!((all[3].state.as_str(), all[3].node.as_deref()), ("running", Some("node-1")));
    let indexes = all.iter().map(|job| job.array_index).collect::<Vec<_>>();
    assert_eq!(indexes[1..], [0, 1, 2, 3, 4, 5, 1, 4].map(Some));

    let folded = records("reasons=true&fold=true").await;
    assert_eq!(ids(&folded), [1, 2, 4, 5, 7, 8, 9]);
    let unfolded = folded.into_iter().flat_map(|record| {
        (0..=record.more).map(move |task| JobRecord {
            id: record.id + u64::from(task),
            array_index: record.array_index.map(|index| index + task),
            more: 0,
            ..record.clone()
        })
    });
    assert_eq!(unfolded.collect::<Vec<_>>(), all);
    for (query, expected) in [
        ("fold=true&user=bob", &[8, 9][..]),
        ("fold=true&name=job+of+ada", &[1, 2, 4, 5, 7]),
        ("fold=true&jobs=2_1,2_2", &[3, 4]),
        ("jobs=8", &[8, 9, 10]),
        ("jobs=10,9", &[9, 10]),
        ("fold=true&until=2000-01-01T00:00:00Z", &[]),
    ] {
        assert_eq!(ids(&records(query).await), expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_recorded_with_its_end_and_an_open_one_ends_with_its_run() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 1, None, "ada").await;
    seed.submission(2, 1, None, "bob").await;
    seed.node().await;
    let attempt = seed.running(1, 1).await;
    let ada = rig.client_of("ada", Role::User).await;
    let report = async |job: u64, step: u32, end: Option<&str>| -> Response {
        let body = json!({
            "attempt": AttemptId::from_uuid(attempt).to_string(), "step": step, "name": "python",
            "tasks": 2, "nodes": "node-1", "ran_ms": 1_500, "exit_code": end,
        });
        ada.post(rig.url(&format!("/v1/jobs/{job}/steps"))).json(&body).send().await.unwrap()
    };
    let recorded = async |step: u32, end: Option<&str>| -> bool {
        let receipt: StepReceipt = report(1, step, end).await.json().await.unwrap();
        receipt.recorded
    };

    assert!(recorded(0, None).await);
    assert!(recorded(0, Some("3:0")).await);
    assert!(!recorded(0, Some("4:0")).await, "it has ended");
    assert!(recorded(1, None).await);
    problem(report(2, 0, None).await, 404, "not-found").await;
    problem(report(1, 2, Some("no code")).await, 400, "bad-field").await;
    seed.ended(1, attempt, "cancelled", "cancelled").await;
    assert!(!recorded(2, None).await, "its run has ended");

    let records: JobRecords = rig.get("/v1/records?jobs=1&runs=true").await.json().await.unwrap();
    let run = &records.jobs[0].runs[0];
    let shown: Vec<_> =
        run.steps.iter().map(|step| (step.step, step.exit_code.as_deref(), step.tasks)).collect();
    assert_eq!(shown, [(0, Some("3:0"), 2), (1, None, 2)]);
    assert_eq!(run.steps[1].ended_at, run.ended_at);
    assert!(
        run.steps[0].ended_at.unwrap() - run.steps[0].started_at >= Duration::from_millis(1_500)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_have_the_reasons_that_the_leader_remembers() {
    let mut rig = Rig::start().await;
    Seed(&rig.pool).submission(1, 6, Some(0), "ada").await;
    rig.answer_placer(|question| {
        let ToPlacer::ListWaitReasons { reply } = question else { panic!("{question:?}") };
        let run = |first, last, reason| WaitReasonRun {
            first: JobId::from_number(first),
            last: JobId::from_number(last),
            reason,
        };
        reply.send(Some(vec![run(1, 2, "priority"), run(4, 4, "resources")])).unwrap();
    });

    let records: JobRecords =
        rig.get("/v1/records?reasons=true&fold=true").await.json().await.unwrap();

    let shown: Vec<_> =
        records.jobs.iter().map(|job| (job.id, job.more, job.reason.as_deref())).collect();
    let (priority, resources) = (Some("priority"), Some("resources"));
    assert_eq!(shown, [(1, 1, priority), (3, 0, None), (4, 0, resources), (5, 1, None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_stay_right_while_jobs_arrive() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 5, Some(0), "ada").await;
    let first: JobPage = rig.get("/v1/jobs?limit=2").await.json().await.unwrap();
    assert_eq!(first.items.iter().map(|job| job.id).collect::<Vec<_>>(), [5, 4]);

    seed.submission(6, 1, None, "ada").await;

    let next = first.next_cursor.unwrap();
    assert_eq!(numbers(&rig, &format!("limit=2&cursor={next}")).await, [3, 2]);
    let all: JobPage =
        rig.get(&format!("/v1/jobs?limit=3&cursor={next}")).await.json().await.unwrap();
    assert_eq!(all.items.len(), 3);
    assert_eq!(all.next_cursor, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_an_array_is_found_by_index_and_by_number() {
    let rig = Rig::start().await;
    Seed(&rig.pool).submission(40, 3, Some(7), "ada").await;
    Seed(&rig.pool).submission(43, 1, None, "ada").await;

    let task: JobDetail = rig.get("/v1/jobs/40_8").await.json().await.unwrap();

    assert_eq!(task.job.id, 41);
    assert_eq!(task.job.name_id, "40_8");
    assert_eq!((task.job.array_id, task.job.array_index), (Some(40), Some(8)));
    let same: JobDetail = rig.get("/v1/jobs/41").await.json().await.unwrap();
    assert_eq!(same, task);
    for none in ["40_6", "40_10", "43_0", "41_8"] {
        problem(rig.get(&format!("/v1/jobs/{none}")).await, 404, "not-found").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_described_with_all_its_runs() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    let lost = seed.running(1, 1).await;
    seed.ended(1, lost, "failed", "queued").await;
    seed.running(1, 2).await;

    let detail: JobDetail = rig.get("/v1/jobs/1").await.json().await.unwrap();

    assert_eq!(detail.program, "/bin/sleep '1 minute'");
    assert_eq!(detail.env_names, ["MODEL"]);
    assert_eq!(detail.time_limit_secs, Some(60));
    assert_eq!(detail.retries_left, 2);
    assert_eq!(detail.job.state_short, "R");
    assert_eq!(detail.job.node.as_deref(), Some("node-1"));
    assert_eq!(detail.job.slice.as_deref(), Some("MIG-7"));
    let [first, second] = detail.attempt_list.try_into().unwrap();
    assert_eq!((first.number, first.state.as_str()), (1, "failed"));
    assert_eq!(first.exit_code.as_deref(), Some("1:0"));
    assert_eq!((first.user_secs, first.max_rss_bytes), (Some(1.5), Some(4096)));
    assert_eq!((first.gpu_energy_joules, first.gpu_memory_peak_bytes), (Some(1.25), Some(77)));
    assert_eq!(second.gpu_energy_joules, None, "what was not measured is not zero");
    assert_eq!((second.number, second.start_slice), (2, Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_attempt_shows_the_last_report_of_its_node() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    let attempt = AttemptId::from_uuid(seed.running(1, 1).await);
    let figures = AttemptFigures {
        attempt,
        job: JobId::from_number(1),
        memory_used: Some(Bytes::new(4096)),
        activity: Some(500),
        energy_mj: Some(12_345),
        memory_peak: Some(Bytes::new(8192)),
        idle_since: None,
    };
    let gpu = GpuFigures {
        gpu: GPU.parse().unwrap(),
        at_unix: Millis::new(1),
        memory_used: None,
        power_mw: Some(50_000),
        activity: None,
        attempts_mj: 12_345,
        other_mj: 0,
        idle_mj: 7,
        slices: Vec::new(),
        attempts: vec![figures],
    };
    rig.figures.show(&"node-1".parse().unwrap(), gpu);

    let detail: JobDetail = rig.get("/v1/jobs/1").await.json().await.unwrap();

    let [running] = detail.attempt_list.try_into().unwrap();
    assert_eq!(running.gpu_energy_joules, Some(12.345));
    assert_eq!((running.gpu_memory_bytes, running.gpu_memory_peak_bytes), (Some(4096), Some(8192)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_shows_its_newest_reason() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    let job = async || rig.get("/v1/jobs/1").await.json::<JobView>().await.unwrap();
    assert_eq!(job().await.reason, None);

    seed.decision(Uuid::now_v7(), 1, "wait", Some("resources"), None).await;
    seed.decision(Uuid::now_v7(), 1, "wait", Some("mig_fragmentation"), None).await;

    assert_eq!(job().await.reason.as_deref(), Some("mig_fragmentation"));
    assert_eq!(job().await.reason_text.as_deref(), Some("wait because"));
    let attempt = seed.running(1, 1).await;
    assert_eq!(job().await.reason, None);
    seed.ended(1, attempt, "failed", "queued").await;
    assert_eq!(job().await.reason.as_deref(), Some("failed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_listed_in_the_order_of_time() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    seed.event(1, "held", "held by its user").await;
    seed.event(1, "queued", "released by its user").await;
    let attempt = seed.running(1, 1).await;
    seed.ended(1, attempt, "failed", "failed").await;
    // The node's clock is an hour ahead.
    let query = sqlx::query("UPDATE attempts SET started_at = now() + interval '1 hour'");
    seed.run(query).await;

    let events: JobEvents = rig.get("/v1/jobs/1/events").await.json().await.unwrap();

    let states: Vec<_> = events.items.iter().map(|event| event.state.as_str()).collect();
    assert_eq!(states, ["queued", "held", "queued", "placing", "running", "failed"]);
    assert_eq!(events.items[3].text, "run 1 gets 1g.5gb at memory slice 2 of GPU 0 on node-1");
    assert_eq!(events.items[5].text, "run 1 ended: failed, exit code 1:0");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_counted() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.submission(1, 4, Some(0), "ada").await;
    seed.state(2, "cancelled").await;

    let counts: JobCounts = rig.get("/v1/jobs/summary").await.json().await.unwrap();

    assert_eq!(counts.total, 4);
    assert_eq!(counts.by_state.len(), 10);
    assert_eq!((counts.by_state["queued"], counts.by_state["running"]), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_listed_page_by_page() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    for (id, job) in [(1, 1), (2, 2), (3, 1), (4, 1)] {
        let start = (id == 4).then_some(19);
        let outcome = if id == 4 { "start" } else { "wait" };
        seed.decision(Uuid::from_u128(id), job, outcome, None, start).await;
    }
    let list = async |query: &str| {
        rig.get(&format!("/v1/decisions?{query}")).await.json::<DecisionPage>().await.unwrap()
    };

    let page = list("limit=3").await;
    assert_eq!(page.items.iter().map(|d| d.job_id).collect::<Vec<_>>(), [1, 1, 2]);
    let rest = list(&format!("limit=3&cursor={}", page.next_cursor.unwrap())).await;
    assert_eq!((rest.items.len(), rest.next_cursor), (1, None));
    assert_eq!(list("job=1").await.items.len(), 3);
    assert_eq!(list("job=3").await.items.len(), 0);

    let one: DecisionView =
        rig.get(&format!("/v1/decisions/{}", page.items[0].id)).await.json().await.unwrap();
    assert_eq!(one, page.items[0]);
    assert_eq!(one.steps, ["create 1g.5gb@2"]);
    assert_eq!((one.node.as_deref(), one.gpu.as_deref()), (Some("node-1"), Some(GPU)));
    assert_eq!(one.candidates[0].reachability_after, Some(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ran_is_explained_by_what_was_decided_then() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 2, Some(0), "ada").await;
    let attempt = seed.running(1, 1).await;
    seed.ended(1, attempt, "succeeded", "succeeded").await;
    seed.state(2, "held").await;

    let ran: JobExplanation = rig.get("/v1/jobs/1_0/explain").await.json().await.unwrap();
    assert_eq!((ran.state.as_str(), ran.summary.as_str()), ("succeeded", "start because"));
    assert!(ran.decision.is_some());
    assert_eq!(ran.candidates.len(), 1);

    let held: JobExplanation = rig.get("/v1/jobs/1_1/explain").await.json().await.unwrap();
    assert_eq!(held.reason.as_deref(), Some("held"));
    assert_eq!(held.would_start_if.as_deref(), Some("it is released"));
    assert_eq!(held.policy, "scheme-b");
}

#[tokio::test(flavor = "multi_thread")]
async fn layout_plans_are_listed_page_by_page() {
    let rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    for generation in 1..=3_i64 {
        seed.run(
            sqlx::query(
                "INSERT INTO layout_plans (plan, gpu, node, layout_gen, state, steps, steps_text,
                    job, planned_at, ended_at)
                 VALUES ($1, $2, $3, $4, 'done', '[]', '{create 1g.5gb@0}', 1,
                    '2026-01-01', '2026-01-02')",
            )
            .bind(Uuid::from_u128(u128::try_from(generation).unwrap()))
            .bind(GPU)
            .bind(NODE)
            .bind(generation),
        )
        .await;
    }
    let list = async |query: &str| {
        rig.get(&format!("/v1/layouts?{query}")).await.json::<LayoutPlans>().await.unwrap()
    };

    let page = list("limit=2").await;

    assert_eq!(page.items[0].plan, "plan_00000000000000000000000000000003");
    assert_eq!(page.items[0].steps, ["create 1g.5gb@0"]);
    let rest = list(&format!("limit=2&cursor={}", page.next_cursor.unwrap())).await;
    assert_eq!((rest.items.len(), rest.next_cursor), (1, None));
    let gone = GPU.replace("000001", "000002");
    assert_eq!(list(&format!("gpu={gone}")).await.items.len(), 0);
    assert_eq!(list(&format!("gpu={GPU}")).await.items.len(), 3);
}
