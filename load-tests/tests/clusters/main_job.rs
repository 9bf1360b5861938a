//! The main job: a script, submitted over REST, runs on a MIG slice of the right size, can be
//! read, and can be explained.

use std::io::Read;
use std::time::{Duration, Instant};

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, script};
use tessera_load_tests::http;
use tessera_load_tests::programs::programs;

fn two_nodes() -> Cluster {
    Plan::new().node("n1", "a100-40gb").node("n2", "a30-24gb").start()
}

/// Queries the driver's library of a node, without the agent.
fn devices_of(cluster: &Cluster, node: usize) -> String {
    let listed = std::process::Command::new(programs().path("tessera-test-job"))
        .arg("devices")
        .arg(&programs().nvml)
        .env("TESSERA_SIM_NODE", cluster.hardware(node))
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn a_script_runs_on_a_slice_of_the_right_size_with_an_explanation() {
    let cluster = two_nodes();
    let request = SubmitRequest {
        name: Some("train".into()),
        user: Some("ada".into()),
        gpu_memory_bytes: Some(8_000_000_000),
        env: [("GREETING".into(), "hello".into())].into(),
        ..script(
            "echo \"$GREETING from job $TESSERA_JOB_ID on $CUDA_VISIBLE_DEVICES\"\n\
             echo trouble >&2\n\
             until [ -e \"$GO\" ]; do sleep 0.02; done\n\
             echo bye",
        )
    };
    let go = cluster.scratch().join("go");
    let mut request = request;
    request.env.insert("GO".into(), go.display().to_string());
    request.stderr = Some(cluster.scratch().join("errors").display().to_string());

    let submitted = cluster.submit(&request);
    let running = cluster.wait_job(submitted.job_id, SOON, "running").job;

    // Nothing is known of it, and no other job is there: it gets half of the faster GPU, and others the rest.
    assert_eq!(running.profile.as_deref(), Some("4g.20gb"));
    assert_eq!(running.node.as_deref(), Some("n1"));
    assert_eq!((running.state_short.as_str(), running.user.as_str()), ("R", "ada"));
    let slice = running.slice.clone().unwrap();
    assert!(slice.starts_with("MIG-"), "{slice}");
    assert!(devices_of(&cluster, 0).contains(&slice), "the driver doesn't know {slice}");
    let gpus = cluster.gpus();
    let taken: Vec<_> = gpus
        .items
        .iter()
        .flat_map(|gpu| &gpu.instances)
        .filter(|instance| instance.job_id == Some(submitted.job_id))
        .collect();
    assert_eq!(taken.len(), 1, "{gpus:#?}");
    assert_eq!(
        (taken[0].slice.as_deref(), taken[0].state.as_str()),
        (Some(slice.as_str()), "taken")
    );

    let first = format!("hello from job {} on {slice}\n", submitted.job_id);
    assert_eq!(cluster.logs(submitted.job_id), first);
    let path = format!("/v1/jobs/{}/logs?follow=true", submitted.job_id);
    let mut follow = http::stream(cluster.http(), &path, &cluster.token()).unwrap();
    let mut seen = vec![0; first.len()];
    follow.read_exact(&mut seen).unwrap();
    assert_eq!(String::from_utf8(seen).unwrap(), first);
    std::fs::write(&go, "").unwrap();
    let mut rest = String::new();
    follow.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");

    let done = cluster.wait_job(submitted.job_id, SOON, "succeeded");
    assert_eq!(done.job.exit_code.as_deref(), Some("0:0"));
    assert_eq!((done.job.attempts, done.attempt_list.len()), (1, 1));
    assert_eq!(done.attempt_list[0].state, "succeeded");
    assert!(done.attempt_list[0].max_rss_bytes.is_some_and(|bytes| bytes > 0));
    assert_eq!(cluster.logs(submitted.job_id), format!("{first}bye\n"));
    let errors = format!("/v1/jobs/{}/logs?stream=stderr", submitted.job_id);
    assert_eq!(cluster.call("GET", &errors, None).expect(200).text(), "trouble\n");

    let why = cluster.explain(submitted.job_id);
    let chosen: Vec<_> = why.candidates.iter().filter(|candidate| candidate.chosen).collect();
    assert_eq!(chosen.len(), 1, "{why:#?}");
    assert_eq!((chosen[0].node.as_str(), chosen[0].profile.as_str()), ("n1", "4g.20gb"));
    let few = "there are few jobs, so it gets at least 40 % of a GPU";
    assert!(why.summary.contains(few), "{}", why.summary);
    let decision = why.decision.unwrap();
    let recorded = cluster.call("GET", &format!("/v1/decisions/{decision}"), None).expect(200);
    let recorded: tessera_api_types::DecisionView = recorded.json();
    assert_eq!((recorded.job_id, recorded.outcome.as_str()), (submitted.job_id, "start"));

    let states: Vec<_> =
        cluster.events(submitted.job_id).items.into_iter().map(|event| event.state).collect();
    assert_eq!(states.first().map(String::as_str), Some("queued"), "{states:?}");
    assert_eq!(states.last().map(String::as_str), Some("succeeded"), "{states:?}");
    assert_eq!(cluster.counts().total, 1);

    // An online job leaves space for later ones: 1g.5gb wastes less than 1g.6gb.
    let online = SubmitRequest {
        class: Some("online".into()),
        gpu_memory_bytes: Some(4_000_000_000),
        ..script("true")
    };
    let small = cluster.submit(&online).job_id;
    let done = cluster.wait_job(small, SOON, "succeeded").job;
    assert_eq!((done.node.as_deref(), done.profile.as_deref()), (Some("n1"), Some("1g.5gb")));
    let why = cluster.explain(small);
    assert!(why.candidates.iter().any(|candidate| !candidate.chosen), "{why:#?}");
}

#[test]
fn a_job_gets_its_environment_folder_and_trace() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();
    let folder = cluster.scratch();
    let request = SubmitRequest {
        work_dir: Some(folder.display().to_string()),
        stdout: Some("out-%j.txt".into()),
        ..script("pwd; env | sort; read line || echo 'stdin closed'")
    };

    let job = cluster.submit(&request).job_id;
    let done = cluster.wait_job(job, SOON, "succeeded");

    let text = std::fs::read_to_string(folder.join(format!("out-{job}.txt"))).unwrap();
    assert_eq!(text.lines().next(), Some(folder.to_str().unwrap()));
    let value = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")).map(str::to_owned))
    };
    assert_eq!(value("TESSERA_JOB_ID"), Some(job.to_string()));
    assert_eq!(value("SLURM_JOB_ID"), Some(job.to_string()));
    assert_eq!(value("TESSERA_ATTEMPT").as_deref(), Some("1"));
    assert_eq!(value("TESSERA_NODE").as_deref(), Some("n1"));
    assert_eq!(value("CUDA_VISIBLE_DEVICES"), done.job.slice);
    assert!(text.ends_with("stdin closed\n"), "{text}");
    let submitted_in = done.traceparent.unwrap();
    let handed = value("TRACEPARENT").unwrap();
    assert_eq!(handed[3..35], submitted_in[3..35], "the job's own spans join its trace");
    // A job must not see the daemons' secrets and settings.
    assert_eq!(value("TESSERA_LOG"), None);
}

#[test]
fn an_array_runs_each_task_once() {
    let cluster = Plan::new().node("n1", "a100-40gb").start();
    let folder = cluster.scratch();
    let request = SubmitRequest {
        array: Some(tessera_api_types::ArrayRange { first: 3, last: 22 }),
        env: [("FOLDER".into(), folder.display().to_string())].into(),
        ..script(
            "echo x >> \"$FOLDER/$TESSERA_ARRAY_TASK_ID\"\n\
             [ \"$SLURM_ARRAY_TASK_ID\" = \"$TESSERA_ARRAY_TASK_ID\" ]",
        )
    };

    let submitted = cluster.submit(&request);
    assert_eq!(submitted.tasks, 20);
    let deadline = Instant::now() + Duration::from_secs(40);
    for task in 0..20 {
        let left = deadline.saturating_duration_since(Instant::now());
        let job = cluster.wait_job(submitted.job_id + task, left, "succeeded").job;
        assert_eq!(job.array_id, Some(submitted.job_id));
        assert_eq!(job.array_index.map(u64::from), Some(3 + task));
        assert_eq!(job.name_id, format!("{}_{}", submitted.job_id, 3 + task));
    }

    for index in 3..=22 {
        let ran = std::fs::read_to_string(folder.join(index.to_string())).unwrap();
        assert_eq!(ran, "x\n", "task {index}");
    }
    let by_name = format!("/v1/jobs/{}_7", submitted.job_id);
    let named: tessera_api_types::JobDetail =
        cluster.call("GET", &by_name, None).expect(200).json();
    assert_eq!(named.job.id, submitted.job_id + 4);
    assert_eq!(cluster.counts().by_state.get("succeeded"), Some(&20));
}
