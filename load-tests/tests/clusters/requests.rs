//! Invalid, impossible and repeated requests over REST.

use std::sync::{Arc, Mutex, Weak};
use std::thread;

use tessera_api_types::{ProblemDetails, SubmitRequest, SubmitResponse};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::http::{self, Response};
use tessera_load_tests::wait;

/// One cluster for all tests of this file that run at the same time.
fn shared() -> Arc<Cluster> {
    static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut slot = CLUSTER.lock().unwrap();
    slot.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Plan::new().node("n1", "a100-40gb").start());
        *slot = Arc::downgrade(&cluster);
        cluster
    })
}

#[track_caller]
fn problem(response: &Response, status: u16) -> ProblemDetails {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let problem: ProblemDetails = response.json();
    assert_eq!(problem.status, status);
    assert!(problem.kind.starts_with("urn:tessera:problem:"), "{}", problem.kind);
    assert!(!problem.title.is_empty() && !problem.detail.is_empty());
    problem
}

#[test]
fn a_field_that_does_not_exist_is_named() {
    let cluster = shared();

    let answer = cluster.call("POST", "/v1/jobs", Some(br#"{"command":["true"],"gpu_mem":5}"#));

    let problem = problem(&answer, 400);
    assert!(format!("{problem:?}").contains("gpu_mem"), "{problem:?}");
}

#[test]
fn every_invalid_request_is_answered_with_the_expected_form() {
    let cluster = shared();
    let cases: [(&str, &str); 7] = [
        (r#"{"command":[]}"#, "command"),
        (r#"{"script":"echo no interpreter"}"#, "script"),
        (r#"{"command":["true"],"priority":10}"#, "priority"),
        (r#"{"command":["true"],"class":"urgent"}"#, "class"),
        (r#"{"command":["true"],"work_dir":"relative"}"#, "work_dir"),
        (r#"{"command":["true"],"time_limit_secs":0}"#, "time_limit_secs"),
        (r#"{"command":["true"],"array":{"first":5,"last":4}}"#, "array"),
    ];
    for (body, field) in cases {
        let answer = cluster.call("POST", "/v1/jobs", Some(body.as_bytes()));

        let status = answer.status;
        assert!(matches!(status, 400 | 422), "{body}: {}", answer.text());
        let problem = problem(&answer, status);
        assert!(problem.field.as_deref().is_some_and(|f| f.starts_with(field)), "{problem:?}");
        assert!(problem.expected.is_some(), "{problem:?}");
    }
}

#[test]
fn invalid_json_and_unknown_paths_are_problem_reports_too() {
    let cluster = shared();

    problem(&cluster.call("POST", "/v1/jobs", Some(b"{")), 400);
    problem(&cluster.call("GET", "/v1/jobs/9999999", None), 404);
    problem(&cluster.call("GET", "/v1/nothing", None), 404);
    problem(&cluster.call("DELETE", "/v1/nodes", None), 405);
    problem(&cluster.call("GET", "/v1/jobs?state=sleeping", None), 400);
    let huge = vec![b' '; 3 << 20];
    problem(&cluster.call("POST", "/v1/jobs", Some(&huge)), 413);
}

#[test]
fn a_job_that_no_slice_could_ever_hold_is_refused_with_the_largest_possible_value() {
    let cluster = shared();
    let request = SubmitRequest { gpu_memory_bytes: Some(80 << 30), ..command(["true"]) };

    let answer = cluster.try_submit(&request, None).unwrap();

    let problem = problem(&answer, 422);
    assert_eq!(problem.field.as_deref(), Some("gpu_memory_bytes"));
    // The largest slice of the only GPU, 7g.40gb.
    let gpus = cluster.gpus();
    let largest = gpus.items[0].profiles.iter().map(|profile| profile.memory_bytes).max().unwrap();
    let shown = format!("{problem:?}");
    assert!(shown.contains(&largest.to_string()), "{shown} doesn't name {largest}");
}

#[test]
fn an_impossible_job_may_wait_for_hardware_on_request() {
    let cluster = shared();
    let request = SubmitRequest {
        gpu_memory_bytes: Some(80 << 30),
        allow_pending: true,
        ..command(["true"])
    };

    let job = cluster.submit(&request).job_id;

    wait::until(SOON, "the reason why it waits", || {
        (cluster.job(job).job.reason.as_deref() == Some("bad_constraints")).then_some(())
    });
    // It delays no other job.
    let other = cluster.submit(&command(["true"])).job_id;
    cluster.wait_job(other, SOON, "succeeded");
    cluster.act(job, "cancel").expect(200);
}

#[test]
fn a_submit_that_is_repeated_with_its_key_makes_one_job() {
    let cluster = shared();
    let request = command(["true"]);
    let key = format!("repeat-{}", std::process::id());

    let first = cluster.try_submit(&request, Some(&key)).unwrap();
    let second = cluster.try_submit(&request, Some(&key)).unwrap();
    let other = SubmitRequest { priority: Some(1), ..command(["true"]) };
    let different = cluster.try_submit(&other, Some(&key)).unwrap();

    assert_eq!(first.json::<SubmitResponse>(), second.json::<SubmitResponse>());
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    assert_eq!(first.header("idempotency-replayed"), None);
    problem(&different, 422);
}

#[test]
fn a_key_belongs_to_its_caller_so_that_others_neither_use_it_up_nor_learn_what_it_made() {
    let cluster = shared();
    let body = serde_json::to_vec(&command(["true"])).unwrap();
    let key = format!("shared-{}", std::process::id());
    let submit = |user: &str| -> (u16, Option<String>, SubmitResponse) {
        let authorization = format!("Bearer {}", cluster.token_for(user, "user"));
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("idempotency-key", key.as_str()),
        ];
        let path = "/v1/jobs";
        let answer = http::request(cluster.http(), "POST", path, &headers, Some(&body)).unwrap();
        let replayed = answer.header("idempotency-replayed").map(str::to_owned);
        (answer.status, replayed, answer.json())
    };

    let (_, first, hers) = submit("ada");
    let (status, other, his) = submit("bob");
    let (_, again, same) = submit("ada");

    assert_eq!((first, other, status), (None, None, 201));
    assert_ne!(hers.job_id, his.job_id);
    assert_eq!((again.as_deref(), same), (Some("true"), hers));
}

#[test]
fn a_hundred_equal_submits_at_once_make_one_job() {
    let cluster = shared();
    let request = command(["true"]);
    let key = format!("at-once-{}", std::process::id());

    let answers: Vec<SubmitResponse> = thread::scope(|scope| {
        let submits: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| cluster.try_submit(&request, Some(&key)).unwrap()))
            .collect();
        submits.into_iter().map(|submit| submit.join().unwrap().json()).collect()
    });

    let first = &answers[0];
    assert!(answers.iter().all(|answer| answer == first), "{answers:?}");
    cluster.wait_job(first.job_id, SOON, "succeeded");
    let named = |id: u64| cluster.all_jobs().into_iter().filter(|job| job.id == id).count();
    assert_eq!(named(first.job_id), 1);
}

#[test]
fn lists_are_read_page_by_page_without_gaps() {
    let cluster = shared();
    let request = SubmitRequest {
        name: Some("paged".into()),
        hold: true,
        array: Some(tessera_api_types::ArrayRange { first: 0, last: 24 }),
        ..command(["true"])
    };
    let array = cluster.submit(&request).job_id;

    let mut ids = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/jobs?array={array}&limit=10{cursor}");
        let page: tessera_api_types::JobPage = cluster.call("GET", &path, None).expect(200).json();
        ids.extend(page.items.iter().map(|job| job.id));
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }

    let newest_first: Vec<u64> = (array..array + 25).rev().collect();
    assert_eq!(ids, newest_first);
    cluster.act(array, "cancel").expect(200);
}

#[test]
fn the_interfaces_of_the_controller_are_complete() {
    let cluster = shared();

    cluster.call("GET", "/healthz", None).expect(200);
    cluster.call("GET", "/readyz", None).expect(200);
    let metrics = cluster.call("GET", "/metrics", None).expect(200).text();
    assert!(metrics.contains("# TYPE tessera_jobs gauge"), "{metrics}");
    let openapi: serde_json::Value = cluster.call("GET", "/openapi.json", None).expect(200).json();
    assert_eq!(openapi["openapi"].as_str().map(|version| &version[..4]), Some("3.1."));
    for path in ["/v1/jobs", "/v1/jobs/{job}", "/v1/nodes", "/v1/gpus", "/v1/layouts"] {
        assert!(openapi["paths"].get(path).is_some(), "{path} is not described");
    }
    let info: tessera_api_types::ClusterInfo =
        cluster.call("GET", "/v1/info", None).expect(200).json();
    assert_eq!((info.policy.as_str(), info.gpus), ("tessera", 1));
}
