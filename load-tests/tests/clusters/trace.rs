//! One job makes one connected trace.

use std::collections::BTreeSet;

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Plan, SOON, script};
use tessera_load_tests::collector::{Collector, ReceivedSpan, attribute};
use tessera_load_tests::wait;

/// Returns whether `received` is reachable from a span of `known`: by trace, parent or link.
fn joins(received: &ReceivedSpan, known: &BTreeSet<Vec<u8>>) -> bool {
    let span = &received.span;
    known.contains(&span.parent_span_id)
        || span.links.iter().any(|link| known.contains(&link.span_id))
}

#[test]
fn one_job_is_one_connected_trace() {
    let collector = Collector::start();
    let cluster = Plan::new()
        .node("n1", "a100-40gb")
        .node("n2", "a30-24gb")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        // Spans are sent soon, not every five seconds.
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start();
    let request = SubmitRequest {
        gpu_profile: Some("2g.10gb".into()),
        ..script("echo $TRACEPARENT; sleep 0.2")
    };

    let job = cluster.submit(&request).job_id;
    let done = cluster.wait_job(job, SOON, "succeeded");
    let handed = cluster.logs(job).trim().to_owned();
    let id = job.to_string();
    let about_it = |received: &ReceivedSpan, name: &str| {
        received.span.name == name && received.attribute("tessera.job.id").as_deref() == Some(&id)
    };
    let names = ["job.submit", "job.place", "gpu.repartition", "job.launch", "job.attempt"];
    let missing = || {
        let spans = collector.spans();
        let has = |name: &&&str| !spans.iter().any(|received| received.span.name == **name);
        names.iter().filter(has).copied().collect::<Vec<_>>()
    };
    wait::within_time(SOON, || missing().is_empty().then_some(()));
    assert_eq!(missing(), [""; 0], "chapters of the story that nobody told");
    let spans = collector.spans().clone();

    // Every step is reported by the process in which it happened.
    let find = |name: &str| spans.iter().find(|received| received.span.name == name).unwrap();
    for (name, service) in names.iter().zip([
        "tessera-controller",
        "tessera-controller",
        "tessera-agent",
        "tessera-agent",
    ]) {
        assert_eq!(find(name).service, service, "{name}");
    }
    assert!(
        spans.iter().any(|received| about_it(received, "job.attempt")),
        "{:#?}",
        find("job.attempt")
    );

    // All spans are connected: from the submit, parents and links reach every one.
    let submit = spans.iter().find(|received| received.span.name == "job.submit").unwrap();
    let mut known: BTreeSet<Vec<u8>> = [submit.span.span_id.clone()].into();
    loop {
        let before = known.len();
        for received in &spans {
            let linked_back = spans.iter().any(|other| {
                known.contains(&other.span.span_id)
                    && other.span.parent_span_id == received.span.span_id
            });
            if joins(received, &known) || linked_back {
                known.insert(received.span.span_id.clone());
            }
        }
        if known.len() == before {
            break;
        }
    }
    for name in names {
        let reached = spans
            .iter()
            .any(|received| received.span.name == name && known.contains(&received.span.span_id));
        assert!(reached, "{name} hangs in the air: {:#?}", find(name).span);
    }

    // The decision lists the considered placements, up to a limit.
    let decision = spans.iter().find(|received| about_it(received, "job.place")).unwrap();
    let events = &decision.span.events;
    assert!(!events.is_empty() && events.len() <= 32, "{events:#?}");
    let verdicts: Vec<_> = events
        .iter()
        .filter(|event| event.name == "candidate.rejected")
        .map(|event| attribute(&event.attributes, "reason"))
        .collect();
    assert!(!verdicts.is_empty(), "{events:#?}");
    assert!(verdicts.iter().all(Option::is_some), "{events:#?}");
    assert_eq!(decision.attribute("tessera.decision.outcome").as_deref(), Some("placed"));
    assert_eq!(
        decision.attribute("tessera.decision.id"),
        done.attempt_list[0].decision.clone(),
        "traces and records name the same decision"
    );

    // The job can add its own spans: its context belongs to the submit's trace.
    let trace: String = submit.span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(handed.split('-').nth(1), Some(trace.as_str()), "{handed}");
    assert_eq!(done.traceparent.unwrap().split('-').nth(1), Some(trace.as_str()));

    // The attempt is reported at its end, with the time that it really took.
    let attempt = &spans.iter().find(|received| about_it(received, "job.attempt")).unwrap().span;
    let lasted = attempt.end_time_unix_nano - attempt.start_time_unix_nano;
    assert!((150_000_000..5_000_000_000).contains(&lasted), "{lasted} ns");

    // The log lines can be found by it.
    assert!(cluster.tails(10_000).contains(&format!("trace_id={trace}")), "no log line names it");
}

#[test]
fn a_callers_own_trace_continues_into_the_job() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let body = serde_json::to_vec(&script("echo $TRACEPARENT")).unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = format!("00-{trace}-00f067aa0ba902b7-01");

    let bearer = format!("Bearer {}", cluster.token());
    let headers = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("traceparent", header.as_str()),
    ];
    let answer = tessera_load_tests::http::request(
        cluster.http(),
        "POST",
        "/v1/jobs",
        &headers,
        Some(&body),
    )
    .unwrap();

    let job = answer.json::<tessera_api_types::SubmitResponse>().job_id;
    cluster.wait_job(job, SOON, "succeeded");
    assert_eq!(cluster.logs(job).trim().split('-').nth(1), Some(trace));
}
