use clap::Parser;

use super::*;
use tessera_api_types::GangRequest;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    submit: Submit,
}

fn around(dialect: SubmitDialect) -> SubmitContext {
    SubmitContext {
        folder: "/home/ada/jobs".into(),
        environment: [("PATH", "/bin"), ("SBATCH_JOB_NAME", "variable"), ("SBATCH_TIMELIMIT", "9")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        host: Some("login".into()),
        dialect,
    }
}

fn request_as(
    dialect: SubmitDialect,
    words: &[&str],
) -> Result<(SubmitRequest, Vec<String>), CommandFailure> {
    let line = Line::try_parse_from([&["submit"], words].concat()).unwrap();
    let PreparedSubmit { request, warnings, .. } = line.submit.prepare(&around(dialect))?;
    Ok((request, warnings))
}

fn request(words: &[&str]) -> Result<(SubmitRequest, Vec<String>), CommandFailure> {
    request_as(SubmitDialect::Tessera, words)
}

fn script(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sh");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_program_runs_in_the_current_folder_with_what_it_needs_to_be_found() {
    let (request, warnings) =
        request(&["--vram", "10G", "-t", "5", "--", "python3", "train.py", "--gpus", "8"]).unwrap();

    let expected = SubmitRequest {
        command: Some(["python3", "train.py", "--gpus", "8"].map(String::from).into()),
        work_dir: Some("/home/ada/jobs".into()),
        env: [
            ("PATH", "/bin"),
            ("SLURM_SUBMIT_DIR", "/home/ada/jobs"),
            ("SLURM_SUBMIT_HOST", "login"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        gpu_memory_bytes: Some(10 << 30),
        time_limit_secs: Some(300),
        ..SubmitRequest::default()
    };
    assert_eq!((request, warnings), (expected, vec![]));
}

#[test]
fn the_command_line_overrides_the_script() {
    let (_folder, path) = script(
        "#!/bin/bash\n#SBATCH -J slurm --gres=gpu:1 -t 10 --no-requeue\n#TESSERA -J ours\nhostname\n",
    );

    let (request, _) = request(&["--profile", "1g.5gb", "-o", "out/%j.txt", &path]).unwrap();

    assert_eq!(request.name.as_deref(), Some("ours"));
    assert_eq!(request.gpu_profile.as_deref(), Some("1g.5gb"));
    assert!(!request.gpu_whole);
    assert_eq!(request.time_limit_secs, Some(600));
    assert_eq!(request.on_lost.as_deref(), Some("fail"));
    assert_eq!(request.stdout.as_deref(), Some("/home/ada/jobs/out/%j.txt"));
    assert!(request.script.unwrap().ends_with("hostname\n"));
}

#[test]
fn a_script_is_called_by_its_file() {
    let (_folder, path) = script("#!/bin/sh\ntrue\n");

    assert_eq!(request(&[&path]).unwrap().0.name.as_deref(), Some("job.sh"));
}

#[test]
fn a_wrapped_line_becomes_a_script() {
    let (request, _) = request(&["--wrap", "sleep 1; hostname", "--env", "A=b=c"]).unwrap();

    assert_eq!(request.script.as_deref(), Some("#!/bin/sh\n\nsleep 1; hostname\n"));
    assert_eq!(request.env["A"], "b=c");
}

#[test]
fn impossible_submits_are_refused_with_the_reason() {
    for (text, why) in [
        ("echo hi\n", "#!/bin/bash"),
        ("", "empty"),
        ("#!/bin/bash\r\necho\r\n", "CR LF"),
        ("#!/bin/bash\n#SBATCH -N 4-1\n", "job.sh:2: "),
    ] {
        let (_folder, path) = script(text);

        let refused = request(&[&path]).unwrap_err();

        assert_eq!(refused.code(), 1);
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let missing = request(&["/no/such/script"]).unwrap_err();
    assert_eq!(
        (missing.code(), missing.to_string()),
        (1, "there is no script /no/such/script".into())
    );
}

#[test]
fn several_gpus_make_a_gang_in_every_spelling() {
    let gang = |nodes, gpus_per_node| Some(GangRequest { nodes, gpus_per_node });
    for (words, expected) in [
        (&["--gpus", "4", "--", "a"][..], gang(1, 4)),
        (&["-G", "4", "-N", "2", "--", "a"], gang(2, 2)),
        (&["--gpus-per-node", "4", "--nodes", "2", "--", "a"], gang(2, 4)),
        (&["--gres", "gpu:4", "-N", "2", "--ntasks-per-node", "1", "--", "a"], gang(2, 4)),
        (&["--gres", "gpu:4", "-N", "2", "--ntasks-per-node", "4", "--", "a"], gang(2, 4)),
        (&["--ntasks", "4", "--gpus-per-task", "1", "--", "a"], gang(1, 4)),
        (&["--ntasks", "4", "--ntasks-per-node=2", "--gpus-per-task", "1", "--", "a"], gang(2, 2)),
        (&["--ntasks", "1", "--gpus-per-task", "a100:2", "--", "a"], gang(1, 2)),
        (&["--ntasks", "4", "--", "a"], None),
        (&["--launch", "each", "--ntasks", "4", "--", "a"], gang(1, 4)),
        (&["--nodes", "2", "--", "a"], gang(2, 1)),
        (&["--nodes", "1", "--ntasks", "1", "--gpus", "1", "--", "a"], None),
        (&["--gres", "none", "--", "a"], None),
        (&["--", "a"], None),
    ] {
        assert_eq!(request(words).unwrap().0.gang, expected, "{words:?}");
    }
    assert!(request(&["--gpus", "4", "--", "a"]).unwrap().0.gpu_whole);
}

#[test]
fn a_script_over_several_gpus_runs_once_unless_each_is_to_have_a_process() {
    let launch = |words: &[&str]| request(words).unwrap().0.launch;

    assert_eq!(launch(&["--gpus", "4", "--", "a"]).as_deref(), Some("once"));
    assert_eq!(launch(&["--gpus", "4", "--launch=each", "--", "a"]).as_deref(), Some("each"));
    assert_eq!(launch(&["--gpus", "1", "--", "a"]), None);
}

#[test]
fn memory_and_processors_are_those_of_a_node() {
    let gib = |gib: u64| Some(gib << 30);
    for (words, memory, cpus) in [
        (&["--mem=10G", "-n4", "-c2", "--", "a"][..], gib(10), Some(8)),
        (&["--mem-per-cpu=2G", "-n4", "-c2", "--", "a"], gib(16), Some(8)),
        (&["--mem-per-cpu=2G", "--", "a"], gib(2), None),
        (&["--mem-per-gpu=4G", "--gpus=2", "--cpus-per-gpu=3", "--", "a"], gib(8), Some(6)),
        (
            &["-N2", "--ntasks-per-node=4", "-c2", "--gres=gpu:4", "--mem=0", "--", "a"],
            None,
            Some(8),
        ),
        (&["--launch=each", "--gpus=4", "-c2", "--mem=1G", "--", "a"], gib(1), Some(2)),
    ] {
        let request = request(words).unwrap().0;

        assert_eq!((request.host_memory_bytes, request.cpus), (memory, cpus), "{words:?}");
    }
}

#[test]
fn variables_of_slurm_exist_only_for_options_that_were_given() {
    let given = |words: &[&str]| -> Vec<(String, String)> {
        let env = request(words).unwrap().0.env.into_iter();
        let is_of_option =
            |name: &str| name.starts_with("SLURM_") && !name.starts_with("SLURM_SUBMIT");
        env.filter(|(name, _)| is_of_option(name)).collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());

    assert_eq!(given(&["--gres=gpu:2", "--", "a"]), []);
    assert_eq!(
        given(&["-n2", "-c3", "--mem=1G", "--", "a"]),
        [
            pair("SLURM_CPUS_PER_TASK", "3"),
            pair("SLURM_MEM_PER_NODE", "1024"),
            pair("SLURM_NPROCS", "2"),
            pair("SLURM_NTASKS", "2"),
        ]
    );
    let two = given(&["--gpus=2", "--gpus-per-task=1", "--", "a"]);
    assert!(two.contains(&pair("SLURM_NTASKS", "2")), "{two:?}");
}

#[test]
fn a_script_has_arguments_and_options_behind_it_are_its_own() {
    let (_folder, path) = script("#!/bin/sh\ntrue\n");

    let request = request(&["-J", "x", &path, "--epochs", "3", "-J", "y"]).unwrap().0;

    assert_eq!(request.arguments, ["--epochs", "3", "-J", "y"]);
    assert_eq!(request.name.as_deref(), Some("x"));
}

#[test]
fn slurms_commands_have_slurms_defaults() {
    let (_folder, path) = script("#!/bin/sh\n#SBATCH -J script --gres=gpu:a100:2\ntrue\n");

    let (request, _) = request_as(SubmitDialect::Slurm(VariablePrefix::Sbatch), &[&path]).unwrap();
    let (array, _) = request_as(
        SubmitDialect::Slurm(VariablePrefix::Sbatch),
        &["-J", "line", "-a", "1,5%1", &path],
    )
    .unwrap();

    assert_eq!(request.name.as_deref(), Some("variable"));
    assert_eq!(request.time_limit_secs, Some(540));
    assert_eq!(request.stdout.as_deref(), Some("/home/ada/jobs/slurm-%j.out"));
    assert_eq!(request.open_mode.as_deref(), Some("truncate"));
    assert_eq!(request.gpu_model.as_deref(), Some("a100"));
    assert_eq!(array.stdout.as_deref(), Some("/home/ada/jobs/slurm-%A_%a.out"));
    assert_eq!((array.name.as_deref(), array.array_limit), (Some("line"), Some(1)));
    assert_eq!(array.array_indexes, [1, 5]);
}

#[test]
fn fields_of_the_api_are_named_as_options_in_sentences() {
    let problem = tessera_api_types::ProblemDetails {
        kind: "urn:tessera:problem:bad-field".into(),
        title: String::new(),
        status: 422,
        detail: "gpu_memory_bytes: 9 is too large".into(),
        field: Some("gpu_memory_bytes".into()),
        expected: Some("at most 8 GiB; or allow_pending to wait, not my_own_thing".into()),
        trace_id: None,
    };

    let ClientError::Refused(named) = with_option_names(ClientError::Refused(Box::new(problem)))
    else {
        panic!("it stays a refusal");
    };

    assert_eq!(named.detail, "--vram: 9 is too large");
    assert_eq!(named.field.as_deref(), Some("--vram"));
    let expected = "at most 8 GiB; or --allow-pending to wait, not my_own_thing";
    assert_eq!(named.expected.as_deref(), Some(expected));
}

#[test]
fn a_gangs_members_may_have_slices() {
    let memory = request(&["--gpus", "4", "--vram", "10G", "--", "a"]).unwrap().0;
    let profile = request(&["--gpus", "1g.5gb:4", "--", "a"]).unwrap().0;

    assert_eq!((memory.gpu_memory_bytes, memory.gpu_whole), (Some(10 << 30), false));
    assert_eq!(profile.gpu_profile.as_deref(), Some("1g.5gb"));
}

#[test]
fn a_wrong_command_line_is_refused_with_the_reason() {
    for (words, why) in [
        (&["--gpus=3", "--nodes=2", "--", "a"][..], "a multiple of 2"),
        (&["--gpus=4", "--gres=gpu:2", "--", "a"], "give one of them"),
        (&["--launch=each", "--gpus=4", "--ntasks=2", "--", "a"], "give one of them"),
        (&["--launch=each", "--gpus-per-task=2", "--", "a"], "a process has one GPU"),
        (&["--gpus=a100:2", "--gres=gpu:h100:2", "--", "a"], "one model"),
        (&["--vram", "1G", "--exclusive", "--", "a"], "in one way"),
        (&["--priority", "12", "--", "a"], "0 (highest)"),
    ] {
        let refused = request(words).unwrap_err();

        assert_eq!(refused.code(), 2, "{words:?}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[test]
fn containers_idle_timeouts_and_input_reach_the_request_and_what_lacks_its_partner_is_refused() {
    let words = [
        "--container-image=python:3.12",
        "--container-mounts=/data:/data:ro,/scratch",
        "--idle-timeout=30",
        "--idle-action=requeue",
        "--input=data.%j",
        "--",
        "true",
    ];
    let (asked, _) = request(&words).unwrap();

    let container = asked.container.unwrap();
    assert_eq!(container.image, "python:3.12");
    assert_eq!(container.mounts, ["/data:/data:ro", "/scratch"]);
    let idle = (asked.idle_timeout_secs, asked.idle_action.as_deref());
    assert_eq!(idle, (Some(1_800), Some("requeue")));
    assert_eq!(asked.input.as_deref(), Some("/home/ada/jobs/data.%j"));
    let (image, _) = request(&["--container=images/a.sif", "--", "true"]).unwrap();
    assert_eq!(image.container.unwrap().image, "/home/ada/jobs/images/a.sif");
    for (option, partner) in [
        ("--idle-action=end", "--idle-timeout TIME"),
        ("--container-mount-home", "--container IMAGE"),
        ("--container-mounts=/data", "--container IMAGE"),
    ] {
        let refused = request(&[option, "--", "true"]).unwrap_err().to_string();
        assert!(refused.contains(option.split('=').next().unwrap()), "{refused}");
        assert!(refused.contains(partner), "{refused}");
    }
}
