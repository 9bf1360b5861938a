//! The command as a process: its messages and its exit codes.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::fake::{Answer, Fake, Request, detail, job};

fn tessera(url: &str, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera"))
        .args(words)
        .env("TESSERA_URL", url)
        .env_remove("TESSERA_TOKEN")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Accepts every submit as job 42, whose end is as given.
fn cluster(state: &'static str, short: &'static str, exit_code: &'static str) -> Fake {
    Fake::start(move |_, request: &Request| match request.line.as_str() {
        "POST /v1/jobs" => Answer::json(json!({ "job_id": 42, "tasks": 1, "state": "queued" })),
        "GET /v1/jobs/42" => Answer::json(detail(42, state, short, Some(exit_code))),
        line if line.starts_with("GET /v1/jobs/42/wait") => {
            Answer::json(job(42, state, short, Some(exit_code)))
        }
        line if line.starts_with("GET /v1/jobs/42/logs") => Answer::text("hello\n"),
        line if line.starts_with("GET /v1/jobs?") => Answer::json(json!({
            "items": [job(42, state, short, Some(exit_code))], "next_cursor": null
        })),
        line => Answer::problem(404, &format!("nothing at {line}")),
    })
}

#[test]
fn a_submit_is_confirmed_in_the_words_of_sbatch() {
    let fake = cluster("succeeded", "CD", "0:0");

    let plain = tessera(&fake.url(), &["submit", "--vram", "2G", "--", "true"]);
    let parsable = tessera(&fake.url(), &["submit", "--parsable", "--wrap", "true"]);
    let quiet = tessera(&fake.url(), &["submit", "-Q", "--mem", "1G", "--wrap", "true"]);
    let json = tessera(&fake.url(), &["submit", "--json", "--", "true"]);

    assert_eq!((out(&plain), plain.status.code()), ("Submitted batch job 42\n".into(), Some(0)));
    assert_eq!(out(&parsable), "42\n");
    assert_eq!((out(&quiet), err(&quiet)), (String::new(), String::new()));
    let json: Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!(json["job_id"], 42);
    let body: Value = serde_json::from_str(&fake.seen()[0].body).unwrap();
    assert_eq!(body["gpu_memory_bytes"], 2_u64 << 30);
}

#[test]
fn waiting_returns_the_code_of_the_job() {
    for (state, short, exit_code, code) in [
        ("succeeded", "CD", "0:0", 0),
        ("failed", "F", "3:0", 3),
        ("failed", "F", "0:9", 137),
        ("cancelled", "CA", "0:15", 143),
    ] {
        let fake = cluster(state, short, exit_code);

        let submitted = tessera(&fake.url(), &["submit", "--wait", "--", "true"]);
        let waited = tessera(&fake.url(), &["wait", "42"]);

        assert_eq!(submitted.status.code(), Some(code), "{}", err(&submitted));
        assert_eq!(waited.status.code(), Some(code), "{}", err(&waited));
        assert!(out(&waited).starts_with(&format!("42 {state}, exit code {exit_code}")));
    }
}

#[test]
fn an_invalid_script_is_refused_before_a_request_is_sent() {
    let fake = cluster("succeeded", "CD", "0:0");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sh");
    std::fs::write(&path, "echo no interpreter\n").unwrap();

    let missing = tessera(&fake.url(), &["submit", "/no/such/job.sh"]);
    let shapeless = tessera(&fake.url(), &["submit", path.to_str().unwrap()]);

    assert_eq!((missing.status.code(), shapeless.status.code()), (Some(1), Some(1)));
    assert_eq!(err(&missing), "tessera: there is no script /no/such/job.sh\n");
    assert!(err(&shapeless).contains("job.sh can't be submitted: its first line"));
    assert_eq!(fake.lines(), [""; 0]);
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let fake = cluster("succeeded", "CD", "0:0");
    for words in [
        &["submit", "--gpus", "3", "--nodes", "2", "--", "true"][..],
        &["submit", "--no-such-option"],
        &["cancel"],
        &["cancel", "42", "--user", "ada"],
        &["show", "forty-two"],
        &["queue", "-t", "sleeping"],
        &["explode"],
    ] {
        let output = tessera(&fake.url(), words);

        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", err(&output));
        assert!(!err(&output).is_empty());
    }
    assert_eq!(fake.lines(), [""; 0]);
}

#[test]
fn a_refusal_exits_with_1_and_its_reason() {
    let fake = Fake::start(|_, _| Answer::problem(422, "no GPU here has 100 GiB"));

    let output = tessera(&fake.url(), &["submit", "--vram", "100G", "--", "true"]);

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err(&output), "tessera: no GPU here has 100 GiB\n");
}

#[test]
fn options_without_effect_are_warned_about() {
    let fake = cluster("succeeded", "CD", "0:0");

    let output = tessera(&fake.url(), &["submit", "--verbose", "--power", "low", "--", "true"]);

    assert_eq!(output.status.code(), Some(0));
    assert!(err(&output).contains("warning: --verbose has no effect: "), "{}", err(&output));
    assert!(err(&output).contains("warning: --power has no effect: "), "{}", err(&output));
}

#[test]
fn a_queue_read_by_a_program_has_neither_colours_nor_headings() {
    let fake = cluster("succeeded", "CD", "0:0");

    let output = tessera(&fake.url(), &["queue", "-h", "-t", "CD", "-u", "ada"]);

    assert!(out(&output).starts_with("42  train  ada  CD"), "{}", out(&output));
    assert!(!out(&output).contains('\x1b'));
    assert!(fake.lines()[0].contains("state=succeeded"), "{:?}", fake.lines());
}

#[test]
fn the_output_of_a_job_is_copied_as_it_is() {
    let fake = cluster("succeeded", "CD", "0:0");

    let output = tessera(&fake.url(), &["logs", "--stderr", "--attempt", "2", "42"]);

    assert_eq!(out(&output), "hello\n");
    let expected = "GET /v1/jobs/42/logs?stream=stderr&offset=0&follow=false&attempt=2";
    assert_eq!(fake.lines(), [expected]);
}

#[test]
fn one_job_that_cannot_be_cancelled_does_not_keep_the_others() {
    let fake = Fake::start(|_, request| match request.line.as_str() {
        "POST /v1/jobs/1/cancel" => Answer::problem(404, "there is no job 1"),
        _ => Answer::json(job(2, "cancelled", "CA", None)),
    });

    let output = tessera(&fake.url(), &["cancel", "1", "2_[3-4]"]);

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(err(&output), "tessera: cancel 1: there is no job 1\n");
    let requests =
        ["POST /v1/jobs/1/cancel", "POST /v1/jobs/2_3/cancel", "POST /v1/jobs/2_4/cancel"];
    assert_eq!(fake.lines(), requests);
}

#[test]
fn an_unreachable_controller_is_named() {
    // No other program uses this address, so that its port stays free.
    let free = std::net::TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();

    let output = tessera(&format!("http://{free}"), &["info"]);

    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&free.to_string()), "{}", err(&output));
    assert!(err(&output).contains("TESSERA_URL"), "{}", err(&output));
}

#[test]
fn a_replay_accounts_for_every_accepted_job() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, "job_id,submit_s,duration_s\na,0,5\nb,1,5\nc,2,5\n").unwrap();
    let replay = ["replay", trace.to_str().unwrap(), "--time-scale", "100", "--json"];
    let cluster = |lose: usize| {
        Fake::start(move |number, request| match request.line.as_str() {
            // The first request is for the caller's name.
            "POST /v1/jobs" => {
                Answer::json(json!({ "job_id": number, "tasks": 1, "state": "queued" }))
            }
            "GET /v1/whoami" => {
                Answer::json(json!({ "user": "ada", "role": "user", "proof": "socket" }))
            }
            line if line.contains("state=active") => {
                Answer::json(json!({ "items": [], "next_cursor": null }))
            }
            _ => {
                let jobs = (1 + lose..=3).rev();
                let jobs: Vec<_> = jobs
                    .map(|id| job(u64::try_from(id).unwrap(), "succeeded", "CD", Some("0:0")))
                    .collect();
                Answer::json(json!({ "items": jobs, "next_cursor": null }))
            }
        })
    };

    let whole = tessera(&cluster(0).url(), &replay);
    let lossy = tessera(&cluster(1).url(), &replay);

    assert_eq!(whole.status.code(), Some(0), "{}", err(&whole));
    let report: Value = serde_json::from_str(&out(&whole)).unwrap();
    assert_eq!(report["accepted"], 3);
    assert_eq!(report["by_state"], json!({ "succeeded": 3 }));
    assert_eq!(lossy.status.code(), Some(1), "{}", out(&lossy));
}

#[test]
fn a_trace_with_a_fault_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.csv");
    std::fs::write(&trace, "job_id,submit_s,duration_s\na,0,5\nb,soon,5\n").unwrap();

    let output = tessera("http://127.0.0.1:1", &["replay", trace.to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("trace.csv, line 3: submit_s is \"soon\""), "{}", err(&output));
}
