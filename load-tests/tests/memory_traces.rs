//! Python programs without a size, as connected traces: from the submit to the end, with everything killed in between.

use tessera_api_types::{JobDetail, JobMemory, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::console::done;
use tessera_load_tests::programs::programs;
use tessera_load_tests::{processes, wait};

/// The stand-in of PyTorch. Its device has the memory of the attempt's slice.
const TORCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/stand-in/python");

/// Allocates 20 MiB each tenth of a second. On SIGUSR1 it saves its state as soon as it is allowed to, and
/// ends.
const GROWS: &str = "
import os, signal, sys, time
import torch

folder, limit = sys.argv[1], int(sys.argv[2]) << 20
attempt, state = os.environ['TESSERA_ATTEMPT'], os.path.join(folder, 'state')
stopped = []
signal.signal(signal.SIGUSR1, lambda *_: stopped.append(True))
held = int(open(state).read()) if os.path.exists(state) else 0
print('resumed', held, flush=True)
kept, step = [torch.empty(held)], 20 << 20
optimizer = torch.optim.SGD()
while held < limit:
    kept.append(torch.empty(step))
    held += step
    optimizer.step()
    time.sleep(0.1)
    if stopped:
        open(os.path.join(folder, 'stopped.' + attempt), 'w').close()
        while not os.path.exists(os.path.join(folder, 'save.' + attempt)):
            time.sleep(0.05)
        with open(state, 'w') as file:
            file.write(str(held))
        sys.exit(0)
print('held', held, flush=True)
";

fn cluster() -> Cluster {
    Plan::new().agent_settings("telemetry_report_ms = 500").node("n1", "a100-40gb").start()
}

/// Writes a program where jobs find it.
fn program(cluster: &Cluster, text: &str) -> String {
    let path = cluster.scratch().join("train.py");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Submits as users do, with default settings and without a size.
fn submit(cluster: &Cluster, words: &[&str]) -> u64 {
    let torch = format!("PYTHONPATH={TORCH}");
    let printed = done(cluster, &[&["submit", "--json", "--env", &torch], words].concat());
    let start = printed.find('{').unwrap_or_else(|| panic!("{printed}"));
    let answer: serde_json::Value = serde_json::from_str(printed[start..].trim()).unwrap();
    answer["job_id"].as_u64().unwrap_or_else(|| panic!("{printed}"))
}

/// Returns what each attempt had in MiB, and how it ended.
fn attempts(job: &JobDetail) -> Vec<(u64, &str)> {
    let given = |bytes: Option<u64>| bytes.expect("each attempt has memory") >> 20;
    let of = job.attempt_list.iter();
    of.map(|attempt| (given(attempt.gpu_memory_given_bytes), attempt.state.as_str())).collect()
}

fn wait_file(cluster: &Cluster, name: &str) {
    let path = cluster.scratch().join(name);
    wait::until(3 * SOON, name, || path.exists().then_some(()));
}

fn wait_event(cluster: &Cluster, id: u64, words: &str) {
    wait::until(4 * SOON, words, || {
        let events = cluster.events(id).items;
        events.iter().any(|event| event.text.contains(words)).then_some(())
    });
}

#[test]
fn a_python_program_without_a_size_gets_the_next_one_until_it_succeeds() {
    let cluster = cluster();
    let train = "import torch\nkept = [torch.empty(1 << 30) for _ in range(12)]\n\
                 torch.optim.SGD().step()\nprint('trained')\n";
    let train = program(&cluster, train);

    let id = submit(&cluster, &["--", "python3", &train]);
    let job = cluster.wait_job(id, 4 * SOON, "succeeded");

    let sizes = [(4_864, "out_of_memory"), (9_856, "out_of_memory"), (19_968, "succeeded")];
    assert_eq!(attempts(&job), sizes);
    assert_eq!((job.oom_count, job.retries_left), (2, 0));
    let why = job.attempt_list[0].detail.as_deref().unwrap();
    assert!(why.contains("torch.OutOfMemoryError"), "{why}");
    assert!(cluster.logs(id).contains("trained"));
}

#[test]
fn an_out_of_memory_behind_tee_leads_to_the_next_size() {
    let cluster = cluster();
    // The companion is off: only the text in the file of tee remains, below a long stack trace.
    let train = "import sys, torch\nsys.setrecursionlimit(10_000)\n\
                 def deep(n):\n    return deep(n - 1) if n else torch.empty(8 << 30)\n\
                 deep(900)\nprint('trained')\n";
    let train = program(&cluster, train);
    let log = cluster.scratch().join("log").display().to_string();
    let text = format!("set -o pipefail\npython3 {train} 2>&1 | tee {log}\n");
    let env = [("TESSERA_COMPANION", "off"), ("PYTHONPATH", TORCH)];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let request = SubmitRequest { env, ..bash(&text) };

    let id = cluster.submit(&request).job_id;
    let job = cluster.wait_job(id, 4 * SOON, "succeeded");

    assert_eq!(attempts(&job), [(4_864, "out_of_memory"), (9_856, "succeeded")]);
    let why = job.attempt_list[0].detail.as_deref().unwrap();
    assert!(why.contains("torch.OutOfMemoryError"), "{why}");
    assert!(std::fs::read_to_string(log).unwrap().contains("trained"));
}

#[test]
fn an_out_of_memory_that_the_program_caught_is_none() {
    let cluster = cluster();
    let caught = "import sys, time, torch\n\
                  kept = torch.empty(1 << 30)\n\
                  try:\n    torch.empty(8 << 30)\n\
                  except torch.OutOfMemoryError as error:\n    print(error, file=sys.stderr)\n\
                  for _ in range(12):\n    torch.optim.SGD().step()\n    time.sleep(0.05)\n";
    let trains_on = program(&cluster, caught);
    let fails = cluster.scratch().join("fails.py");
    std::fs::write(&fails, format!("{caught}raise ValueError('the labels are wrong')\n")).unwrap();

    let good = submit(&cluster, &["--", "python3", &trains_on]);
    let bad = submit(&cluster, &["--", "python3", &fails.display().to_string()]);
    let good = cluster.wait_job(good, 3 * SOON, "succeeded");
    let bad = cluster.wait_job(bad, 3 * SOON, "failed");

    assert_eq!(attempts(&good), [(4_864, "succeeded")]);
    assert_eq!(attempts(&bad), [(4_864, "failed")]);
    assert_eq!((good.oom_count, bad.oom_count, bad.memory_estimate_bytes), (0, 0, None));
}

#[test]
fn whatever_is_killed_during_a_predicted_move_no_size_is_tried_twice_and_nothing_is_lost() {
    let mut cluster = cluster();
    let train = program(&cluster, GROWS);
    let folder = cluster.scratch().display().to_string();
    let save = |cluster: &Cluster, attempt: u32| {
        std::fs::write(cluster.scratch().join(format!("save.{attempt}")), "").unwrap();
    };

    let moves = ["--memory-prediction", "act", "--checkpoint", "USR1", "--grace", "120"];
    let line = ["--", "python3", &train, &folder, "10100"];
    let id = submit(&cluster, &[&moves[..], &line[..]].concat());

    // The move is written. Then its leader dies, and the agent with it, whether or not they had begun it.
    wait_event(&cluster, id, "it is moved to a slice with at least 5.75 GiB");
    cluster.controller.kill();
    cluster.agents[0].kill();
    cluster.controller.start();
    cluster.agents[0].start();
    cluster.wait_ready();
    wait_file(&cluster, "stopped.1");
    // The next leader doesn't know the readings, and the program is saving.
    cluster.controller.kill();
    cluster.controller.start();
    cluster.wait_ready();
    save(&cluster, 1);
    // In the second move the shepherd dies before the program can save.
    wait_event(&cluster, id, "it is moved to a slice with at least 11.55 GiB");
    wait_file(&cluster, "stopped.2");
    cluster.controller.kill();
    let shepherds = processes::named("tessera-shepherd", &cluster.processes());
    shepherds.iter().for_each(|pid| processes::signal(*pid, libc::SIGKILL));
    cluster.controller.start();
    let job = cluster.wait_job(id, 6 * SOON, "succeeded");

    assert_eq!(attempts(&job), [(4_864, "preempted"), (9_856, "lost"), (19_968, "succeeded")]);
    assert_eq!((job.oom_count, job.retries_left), (0, 0), "it never ran out of memory");
    let sources = job.attempt_list.iter().map(|attempt| attempt.size_source.as_deref().unwrap());
    assert_eq!(sources.collect::<Vec<_>>(), ["unknown", "predicted", "predicted"]);
    // The second attempt could not save: the third goes on from what the first one saved.
    let saved = std::fs::read_to_string(cluster.scratch().join("state")).unwrap();
    let output = cluster.logs(id);
    assert!(saved.parse::<u64>().unwrap() > 0 && output.contains(&format!("resumed {saved}\n")));
    assert!(output.contains("held "), "{output}");
    let memory: JobMemory =
        cluster.call("GET", &format!("/v1/jobs/{id}/memory"), None).expect(200).json();
    let moved: Vec<_> = memory.attempts.iter().filter(|attempt| attempt.moved).collect();
    assert_eq!(moved.len(), 2, "each size was left once: {memory:?}");
}

/// A program on the CUDA stand-in whose calls to the driver are watched.
fn watched(arguments: &str) -> SubmitRequest {
    let grow = programs().path("tessera-sim-grow").display().to_string();
    let driver = programs().path("../stand-in").canonicalize().unwrap().display().to_string();
    let env = [("LD_LIBRARY_PATH", driver), ("TESSERA_WATCH", "on".to_owned())];
    let env = env.map(|(name, value)| (name.to_owned(), value)).into();
    SubmitRequest { env, ..bash(&format!("exec {grow} {arguments} 2>/dev/null\n")) }
}

#[test]
fn a_program_that_prints_nothing_gets_what_the_driver_refused_it_at_once() {
    let cluster = cluster();

    let id = cluster.submit(&watched("--step 12GiB --limit 12GiB")).job_id;
    let job = cluster.wait_job(id, 4 * SOON, "succeeded");

    // The next size would be 9.62 GiB: the request of 12 GiB shows that this is too little.
    assert_eq!(attempts(&job), [(4_864, "out_of_memory"), (19_968, "succeeded")]);
    assert_eq!(job.oom_count, 1);
    let why = job.attempt_list[0].detail.as_deref().unwrap();
    assert!(why.contains("it runs again with at least 12 GiB"), "{why}");
}

#[test]
fn what_a_program_allocates_before_its_first_kernel_is_shown_with_the_multiprocessors_for_it() {
    let cluster = cluster();
    // 1,000 blocks of 8 warps fill 125 multiprocessors: two steps on the 108 of an A100, as on 63.
    let line = "--step 1GiB --limit 3GiB --launch-at 2GiB --launch-blocks 1000 --hold-seconds 2";

    let id = cluster.submit(&watched(line)).job_id;
    let job = cluster.wait_job(id, 3 * SOON, "succeeded");

    assert_eq!(job.memory_before_launch_bytes, Some(2 << 30));
    assert_eq!(job.launch_multiprocessors, Some(63));
    let peak = wait::until(SOON, "the attempt's peak", || {
        cluster.job(id).attempt_list[0].gpu_memory_peak_bytes
    });
    assert!(peak >= 3 << 30, "with the context of CUDA it is more: {peak}");
    let shown = done(&cluster, &["show", &id.to_string()]);
    assert!(shown.contains("2 GiB of GPU memory was allocated before it"), "{shown}");
}

#[test]
fn a_refusal_of_the_driver_that_the_program_survives_is_none() {
    let cluster = cluster();
    // After each refusal it frees a step and tries again, as caching allocators do, and it ends between two
    // requests. Another program fails.
    let [state, stop] = ["state", "stop"].map(|name| cluster.scratch().join(name));
    let line = format!(
        "--step 2GiB --limit 6GiB --retries 1000000 --every-ms 20 --state {} --stop-when {}; ls /nowhere",
        state.display(),
        stop.display()
    );
    let mut request = watched(&line);
    request.script = request.script.map(|text| text.replacen("exec ", "", 1));

    let id = cluster.submit(&request).job_id;
    cluster.wait_job(id, SOON, "running");
    wait::until(3 * SOON, "twenty requests", || {
        (cluster.logs(id).matches("held_bytes").count() >= 20).then_some(())
    });
    std::fs::write(&stop, "").unwrap();
    let job = cluster.wait_end(id, 3 * SOON);

    assert_eq!(attempts(&job), [(4_864, "failed")], "{job:?}");
    assert_eq!((job.oom_count, job.job.state.as_str()), (0, "failed"));
}

/// A script for bash, whose pipes report failures.
fn bash(text: &str) -> SubmitRequest {
    let mut request = script(text);
    request.script = Some(format!("#!/bin/bash\n{text}"));
    request.user = Some("ada".into());
    request
}
