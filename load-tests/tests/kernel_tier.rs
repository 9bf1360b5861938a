//! Jobs that share a slice kernel by kernel: from `--share kernel` over the preloaded shim and the
//! agent's queue to what the API shows of gaps and kernels. The device is the CUDA stand-in.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tessera_api_types::{JobDetail, KernelQueueUse, SubmitRequest};
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::console::done;
use tessera_load_tests::players::traced_kernels;
use tessera_load_tests::recordings::player;
use tessera_load_tests::wait;

/// Timeout for a program that takes some seconds on an idle machine.
const DONE_WITHIN: Duration = Duration::from_secs(90);

fn kernel_use(cluster: &Cluster, job: u64) -> KernelQueueUse {
    wait::until(SOON, "what a job did in its queue", || {
        cluster.job(job).attempt_list[0].kernel.clone().filter(|kernel| kernel.processes > 0)
    })
}

/// Sets variables that jobs may not set. The programs that they start may.
fn with_variables(mut request: SubmitRequest, variables: &[(&str, &Path)]) -> SubmitRequest {
    let set = variables.iter().map(|(name, path)| format!("{name}={}", path.display()));
    let program = request.command.take().unwrap();
    request.command = Some(["env".to_owned()].into_iter().chain(set).chain(program).collect());
    request
}

fn slice(job: &JobDetail) -> String {
    job.attempt_list[0].slice.clone().unwrap()
}

fn tasks(cluster: &Cluster) -> Value {
    cluster.call("GET", "/v1/kernels", None).expect(200).json()
}

/// Lines of a file that are not empty; none if it isn't there yet.
fn lines_with(file: &Path, what: &str) -> usize {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains(what)).count()
}

#[test]
fn a_killed_agent_fails_no_job_of_its_queue_and_they_rejoin_it() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let [log, traces] = ["shim.log", "traces"].map(|name| cluster.scratch().join(name));
    let high = "iterations 1000\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    let low = "iterations 5000\nkernel piece dur=1ms\nrun piece 8x1x1/128x1x1\nsync\n";
    let jobs = [("high", 0, high), ("low", 7, low)].map(|(name, priority, steps)| {
        let watched = [("TESSERA_KERNEL_LOG", &*log), ("TESSERA_SIM_CUDA_TRACE", &traces)];
        cluster.submit(&with_variables(player(&cluster, name, priority, steps), &watched)).job_id
    });
    wait::until(DONE_WITHIN, "gaps are filled", || {
        let filler = cluster.job(jobs[1]).attempt_list.first()?.kernel.clone()?;
        (filler.filled_kernels > 50).then_some(())
    });

    cluster.agents[0].kill();
    let kernels = || -> Vec<usize> {
        let traces = fs::read_dir(&traces).unwrap().map(|trace| trace.unwrap().path());
        traces.map(|trace| lines_with(&trace, "\"op\":\"kernel\"")).collect()
    };
    let before = kernels();
    assert_eq!(before.len(), 2, "both write down what they run");
    wait::until(SOON, "both go on without the agent", || {
        kernels().iter().zip(&before).all(|(now, before)| *now > before + 100).then_some(())
    });
    let sessions = lines_with(&log, "session ");
    cluster.agents[0].start();
    wait::until(SOON, "both are under the queue again", || {
        (lines_with(&log, "session ") >= sessions + 2).then_some(())
    });

    for job in jobs {
        let done = cluster.wait_job(job, DONE_WITHIN, "succeeded");
        assert_eq!(done.attempt_list.len(), 1, "{done:?}");
    }
    let filler = kernel_use(&cluster, jobs[1]);
    assert!(filler.filled_kernels > 0 && filler.waits > 0, "after it was back: {filler:?}");
}

#[test]
fn two_jobs_on_one_slice_are_measured_and_then_one_fills_the_others_gaps() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    // 2 ms of work and 8 ms of pause; and work without a pause that lasts until the other one has
    // begun.
    let high = "iterations 300\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    let low = "iterations 3000\nkernel piece dur=1ms\nrun piece 8x1x1/128x1x1\nsync\n";
    let high = player(&cluster, "high", 0, high);
    let low = player(&cluster, "low", 7, low);

    // Each alone, since their kernels are not known.
    for request in [&high, &low] {
        let job = cluster.submit(request).job_id;
        cluster.wait_job(job, DONE_WITHIN, "succeeded");
        assert!(kernel_use(&cluster, job).launches_unreported == 0);
    }
    let known = wait::until(SOON, "both tasks are measured", || {
        let tasks = tasks(&cluster);
        let items = tasks["items"].as_array()?.clone();
        let measured = |item: &&Value| item["measured"] == true;
        (items.iter().filter(measured).count() == 2).then_some(tasks)
    });
    assert!(known.to_string().contains("root: high"), "{known}");
    let path = "/v1/kernels/task?task_key=root%3A%20high";
    let kernels: Value = cluster.call("GET", path, None).expect(200).json();
    let took = kernels["kernels"][0]["took"]["mean_us"].as_f64().unwrap();
    assert!((1_500.0..4_000.0).contains(&took), "{kernels}");

    // Both together on one slice: the one with the lower priority fills the gaps.
    let jobs = [&high, &low].map(|request| cluster.submit(request).job_id);
    let [first, second] = jobs.map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
    assert_eq!(slice(&first), slice(&second));
    let (holder, filler) = (kernel_use(&cluster, jobs[0]), kernel_use(&cluster, jobs[1]));
    assert!(holder.gaps_seen > 0 && holder.gaps_filled > 0, "{holder:?}");
    assert!(filler.filled_kernels > 0 && filler.waits > 0, "{filler:?}");
    assert_eq!(holder.waits, 0, "the holder never waits: {holder:?}");
}

#[test]
fn over_mps_jobs_are_its_clients_and_their_memory_is_enforced() {
    let cluster =
        Plan::new().node("n1", "a100-40gb").agent_settings("kernel_over_mps = true\n").start();
    let steps = "iterations 200\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    let holder = player(&cluster, "holder", 0, steps);
    let with_report = |request: &SubmitRequest| {
        // The same program, which first prints of which daemon it is a client.
        let mut words: Vec<String> = ["sh", "-c"].map(str::to_owned).into();
        words.push(
            "echo pipe=$CUDA_MPS_PIPE_DIRECTORY sm=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; exec \"$@\" 2>&1"
                .to_owned(),
        );
        words.push("sh".to_owned());
        words.extend(request.command.clone().unwrap());
        SubmitRequest { command: Some(words), ..request.clone() }
    };
    let jobs = [with_report(&holder), with_report(&player(&cluster, "filler", 7, steps))]
        .map(|request| cluster.submit(&request).job_id);
    let [first, second] = jobs.map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
    assert_eq!(slice(&first), slice(&second));
    let pipes = jobs.map(|job| {
        let log = cluster.logs(job);
        let line = log.lines().find(|line| line.starts_with("pipe=")).unwrap().to_owned();
        assert!(line.ends_with("sm=100"), "all multiprocessors to each: {line}");
        line
    });
    assert_eq!(pipes[0], pipes[1], "one daemon for the slice");
    assert!(pipes[0].contains('/'), "{pipes:?}");
    for job in jobs {
        let used = kernel_use(&cluster, job);
        assert!(used.launches > 0 && used.launches_unreported == 0, "{used:?}");
    }

    // It requests 1 GiB and takes two.
    let greedy =
        player(&cluster, "greedy", 3, &steps.replace("iterations", "memory 2GiB\niterations"));
    let greedy = SubmitRequest { oom_policy: Some("fail".into()), ..with_report(&greedy) };
    let greedy = cluster.submit(&greedy).job_id;
    cluster.wait_end(greedy, DONE_WITHIN);
    assert!(cluster.logs(greedy).contains("OUT_OF_MEMORY"), "{}", cluster.logs(greedy));
}

#[test]
fn over_mps_each_job_has_its_own_percentage_and_is_due_after_its_own_threshold() {
    let cluster =
        Plan::new().node("n1", "a100-40gb").agent_settings("kernel_over_mps = true\n").start();
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "7g.40gb", "--pin"]);
    let steps = "iterations 200\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    let jobs = [("whole", None), ("most", Some(80)), ("some", Some(25))].map(|(name, percent)| {
        let log = cluster.scratch().join(format!("{name}.log"));
        let mut request = player(&cluster, name, 5, steps);
        request.sm_percent = percent;
        let mut words: Vec<String> = ["sh", "-c"].map(str::to_owned).into();
        words.push(format!(
            "echo sm=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; export TESSERA_KERNEL_LOG={}; exec \"$@\"",
            log.display()
        ));
        words.push("sh".to_owned());
        words.extend(request.command.take().unwrap());
        request.command = Some(words);
        (cluster.submit(&request).job_id, percent, log)
    });
    // The queue's threshold is 50 ms at a share of 100 %.
    for ((job, requested, log), (percent, due)) in
        jobs.into_iter().zip([(100, 50), (80, 62), (25, 200)])
    {
        let ended = cluster.wait_job(job, DONE_WITHIN, "succeeded");
        assert!(cluster.logs(job).contains(&format!("sm={percent}")), "{}", cluster.logs(job));
        let log = fs::read_to_string(&log).unwrap();
        assert!(log.contains(&format!("due after {due} ms")), "{percent} %: {log}");
        let attempt = &ended.attempt_list[0];
        assert_eq!((attempt.share.as_deref(), attempt.sm_percent), (Some("kernel"), requested));
    }
}

#[test]
fn a_job_in_exclusive_mode_fills_no_gaps_and_its_own_are_not_filled() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    // With one slice, both are on it.
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "7g.40gb", "--pin"]);
    let steps = "iterations 150\nkernel step dur=2ms\nrun step 64x1x1/256x1x1\ngap 8ms\n";
    for (round, [first, second]) in
        [["kernel:exclusive", "kernel"], ["kernel", "kernel:exclusive"]].into_iter().enumerate()
    {
        let submit = |role: &str, share: &str, priority| {
            let mut request = player(&cluster, &format!("{role}{round}"), priority, steps);
            request.share = Some(share.to_owned());
            cluster.submit(&request).job_id
        };
        let holder = submit("holder", first, 5);
        wait::until(DONE_WITHIN, "the first job launches", || {
            let used = cluster.job(holder).attempt_list.first()?.kernel.clone()?;
            (used.launches > 20).then_some(())
        });
        // In the first round it has the better priority, and waits anyway.
        let waiting = submit("waiting", second, if round == 0 { 0 } else { 5 });
        let ended = [holder, waiting].map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
        assert_eq!(slice(&ended[0]), slice(&ended[1]));
        assert!(ended[1].job.ended_at > ended[0].job.ended_at, "{ended:?}");
        let [held, waited] = [holder, waiting].map(|job| kernel_use(&cluster, job));
        assert_eq!((held.gaps_filled, held.waits), (0, 0), "round {round}: {held:?}");
        assert_eq!((waited.filled_kernels, waited.ungranted), (0, 0), "round {round}: {waited:?}");
        let shown = done(&cluster, &["show", &holder.to_string()]);
        assert_eq!(shown.contains("never runs next to another job"), round == 0, "{shown}");
    }
}

#[test]
fn over_mps_small_kernels_of_two_jobs_run_at_once_and_large_ones_do_not() {
    let cluster =
        Plan::new().node("n1", "a100-40gb").agent_settings("kernel_over_mps = true\n").start();
    // With one slice, placement can't separate jobs that would slow each other down.
    done(&cluster, &["gpus", "layout", "apply", "n1:0", "7g.40gb", "--pin"]);
    // Eight blocks of 256 threads fill one of the 108 multiprocessors. The holder pauses for more than half of its time:
    // otherwise placement would separate the jobs as soon as it knows how busy both are.
    let mut found = Vec::new();
    for (size, blocks, percent) in [("small", 64, 8), ("large", 864, 100)] {
        let steps = |role: &str, iterations: u32| {
            let pause = if role == "holder" { "gap 3ms" } else { "sync" };
            format!(
                "iterations {iterations}\nkernel step dur=2ms sm={percent}\nrun step {blocks}x1x1/256x1x1\n{pause}\n"
            )
        };
        let named = |role: &str, priority, iterations| {
            player(&cluster, &format!("{size}-{role}"), priority, &steps(role, iterations))
        };
        // Each alone, since their kernels are not known.
        for (role, priority) in [("holder", 0), ("filler", 7)] {
            let job = cluster.submit(&named(role, priority, 400)).job_id;
            cluster.wait_job(job, DONE_WITHIN, "succeeded");
        }
        wait::until(SOON, "both tasks are measured", || {
            let tasks = tasks(&cluster);
            let is_it = |item: &&Value| {
                item["measured"] == true && item["task_key"].to_string().contains(size)
            };
            (tasks["items"].as_array()?.iter().filter(is_it).count() == 2).then_some(())
        });

        let [of_holder, of_filler] =
            ["holder", "filler"].map(|role| cluster.scratch().join(format!("{size}-{role}")));
        let [holder, filler] = [("holder", 0, &of_holder), ("filler", 7, &of_filler)].map(
            |(role, priority, traces)| {
                let request = named(role, priority, 1_000);
                let traced = with_variables(request, &[("TESSERA_SIM_CUDA_TRACE", traces)]);
                cluster.submit(&traced).job_id
            },
        );
        let done = [holder, filler].map(|job| cluster.wait_job(job, DONE_WITHIN, "succeeded"));
        assert_eq!(slice(&done[0]), slice(&done[1]));
        let used = wait::until(SOON, "the filler's totals", || {
            let used = cluster.job(filler).attempt_list[0].kernel.clone()?;
            (used.launches > 0).then_some(used)
        });
        let [held, filled] = [&of_holder, &of_filler].map(|traces| traced_kernels(traces).unwrap());
        // Launches of the filler while a kernel of the holder ran, and all that it made meanwhile.
        let is_in = |at: u64, (from, until): &(u64, u64)| (*from..*until).contains(&at);
        let spans = || held.iter().flat_map(|ran| &ran.spans);
        let begun = spans().map(|(from, _)| *from).min().unwrap();
        let ended = spans().map(|(_, until)| *until).max().unwrap();
        let launches = filled.iter().filter(|ran| is_in(ran.queued, &(begun, ended)));
        let amid = launches.clone().filter(|ran| spans().any(|span| is_in(ran.queued, span)));
        let counted = (amid.count(), launches.count());
        eprintln!("{size}: {counted:?} {used:?}");
        found.push((counted, usize::try_from(used.aged).unwrap()));
    }
    // The holder is busy for two fifths of its time. A small kernel is admitted at any time. A large one is admitted only
    // between two kernels of the holder, or because it waited for too long. A thread that is woken late may launch it
    // later than that.
    let [((small, of_small), aged), ((large, _), _)] = found[..] else { panic!("{found:?}") };
    assert!(small > aged + of_small / 5, "{found:?}");
    assert!(4 * large < small, "{found:?}");
}
