//! The tables of spans and attributes in `docs/tracing.md` are made from the names in the code and from the spans that
//! daemons send.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::collector::{Collector, ReceivedSpan, type_of};
use tessera_load_tests::console::done;
use tessera_load_tests::wait;

use super::tools::{read, root};

const PAGE: &str = "docs/tracing.md";
/// Set to 1 to write the tables instead of comparing them.
const WRITE: &str = "TESSERA_WRITE_TRACING";
/// Kinds of spans by their numbers in OpenTelemetry's protocol.
const KINDS: [&str; 6] = ["unspecified", "internal", "server", "client", "producer", "consumer"];

/// The names in one module of `crates/telemetry/src/names.rs` with what they stand for, in their order.
fn documented(module: &str) -> Vec<(String, String)> {
    let names = read("crates/telemetry/src/names.rs");
    let (_, text) = names.split_once(&format!("\npub mod {module} {{\n")).unwrap();
    let text = text.split("\n}").next().unwrap();
    let mut found = Vec::new();
    let mut meaning = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(part) = line.strip_prefix("///") {
            meaning.push(part.trim());
        } else if let Some(name) = line.split('"').nth(1) {
            let sentence = meaning.join(" ");
            found.push((name.to_owned(), sentence.trim_end_matches('.').to_owned()));
            meaning.clear();
        }
    }
    found
}

/// What the daemons sent under one name.
#[derive(Default)]
struct Sent {
    services: BTreeSet<String>,
    kinds: BTreeSet<i32>,
    attributes: BTreeMap<String, &'static str>,
}

/// A cluster that does everything that has a span.
fn everything() -> Vec<ReceivedSpan> {
    let collector = Collector::start();
    let cluster = Plan::new()
        .node("n1", "a100-40gb")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start();
    let profile = |profile: &str, line: &str| SubmitRequest {
        gpu_profile: Some(profile.to_owned()),
        ..script(line)
    };
    for (name, line, state) in [("2g.10gb", "true", "succeeded"), ("7g.40gb", "exit 3", "failed")] {
        let job = cluster.submit(&profile(name, line)).job_id;
        cluster.wait_job(job, SOON, state);
    }
    waits_for_another(&cluster, &profile("7g.40gb", "sleep 0.3"));
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "1c+2c.3g.20gb@0,1g.5gb"]);
    let expected: BTreeSet<_> = documented("span").into_iter().map(|(name, _)| name).collect();
    let has_all = || {
        let spans = collector.spans();
        let names: BTreeSet<_> = spans.iter().map(|received| received.span.name.clone()).collect();
        let events = spans.iter().any(|received| !received.span.events.is_empty());
        (events && expected.is_subset(&names)).then_some(())
    };
    wait::until(SOON, "every span arrives", has_all);
    let spans = collector.spans().clone();
    let has_reasons = |received: &ReceivedSpan| {
        let reasons = received.attribute("tessera.wait.reasons");
        reasons.is_some_and(|reasons| reasons.contains("resources"))
    };
    assert!(spans.iter().any(has_reasons), "no job.wait has the reason for which it waited");
    spans
}

fn waits_for_another(cluster: &Cluster, request: &SubmitRequest) {
    let jobs = [0, 1].map(|_| cluster.submit(request).job_id);
    for job in jobs {
        cluster.wait_job(job, SOON, "succeeded");
    }
}

fn by_name(spans: &[ReceivedSpan]) -> BTreeMap<String, Sent> {
    let mut all: BTreeMap<String, Sent> = BTreeMap::new();
    for received in spans {
        let sent = all.entry(received.span.name.clone()).or_default();
        sent.services.insert(received.service.trim_start_matches("tessera-").to_owned());
        sent.kinds.insert(received.span.kind);
        for pair in &received.span.attributes {
            sent.attributes.insert(pair.key.clone(), type_of(pair));
        }
        for event in &received.span.events {
            let sent = all.entry(event.name.clone()).or_default();
            for pair in &event.attributes {
                sent.attributes.insert(pair.key.clone(), type_of(pair));
            }
        }
    }
    all
}

fn tables(sent: &BTreeMap<String, Sent>) -> [(&'static str, String); 2] {
    let attributes = documented("attribute");
    let listed = |of: &Sent| {
        let known = attributes.iter().filter(|(name, _)| of.attributes.contains_key(name));
        known.map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let mut spans = String::new();
    for (name, meaning) in documented("span") {
        let found = &sent[&name];
        let services = found.services.iter().cloned().collect::<Vec<_>>().join(", ");
        let kinds: Vec<_> =
            found.kinds.iter().map(|kind| KINDS[usize::try_from(*kind).unwrap()]).collect();
        let kinds = kinds.join(", ");
        spans += &format!("| `{name}` | {services} | {kinds} | {meaning} | {} |\n", listed(found));
    }
    let mut meanings = String::new();
    for (name, meaning) in &attributes {
        let kind = sent.values().find_map(|found| found.attributes.get(name));
        let kind = kind.unwrap_or_else(|| panic!("no span has {name}"));
        meanings += &format!("| `{name}` | {kind} | {meaning} |\n");
    }
    [
        ("| span | from | kind | what it covers | attributes |\n|---|---|---|---|---|\n", spans),
        ("| attribute | type | meaning |\n|---|---|---|\n", meanings),
    ]
}

/// Puts a table's rows in place of those that the page has.
fn with_table(page: &str, head: &str, rows: &str) -> String {
    let (before, rest) = page.split_once(head).unwrap_or_else(|| panic!("{PAGE} has no {head}"));
    let (_, after) = rest.split_once("\n\n").unwrap();
    format!("{before}{head}{rows}\n{after}")
}

#[test]
fn the_tables_of_the_page_are_those_of_the_code_and_of_what_daemons_send() {
    let sent = by_name(&everything());
    let known: BTreeSet<_> = documented("attribute").into_iter().map(|(name, _)| name).collect();
    let ours = |name: &String| name.starts_with("tessera.");
    for (span, found) in &sent {
        let unknown = found.attributes.keys().filter(|name| ours(name) && !known.contains(*name));
        assert_eq!(unknown.count(), 0, "{span}: {:?}", found.attributes);
    }

    let page = read(PAGE);
    let made =
        tables(&sent).iter().fold(page.clone(), |page, (head, rows)| with_table(&page, head, rows));
    if std::env::var_os(WRITE).is_some_and(|value| value == "1") {
        fs::write(root().join(PAGE), made).unwrap();
        return;
    }
    assert_eq!(page, made, "run this test with {WRITE}=1 and commit {PAGE}");
    for (event, _) in documented("event") {
        assert!(page.contains(&format!("`{event}`")), "{event}");
    }
}
