use clap::Parser;

use super::*;
use tessera_api_types::GangRequest;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    submit: Submit,
}

fn around() -> SubmitContext {
    SubmitContext {
        folder: "/home/ada/jobs".into(),
        environment: [("PATH".to_owned(), "/bin".to_owned())].into(),
    }
}

fn request(words: &[&str]) -> Result<(SubmitRequest, Vec<String>), CommandFailure> {
    let line = Line::try_parse_from([&["submit"], words].concat()).unwrap();
    line.submit.request(&around())
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
        env: [("PATH".to_owned(), "/bin".to_owned())].into(),
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
fn what_cannot_be_submitted_is_refused_with_the_reason() {
    for (text, why) in [
        ("echo hi\n", "#!/bin/bash"),
        ("", "empty"),
        ("#!/bin/bash\r\necho\r\n", "CR LF"),
        ("#!/bin/bash\n#SBATCH -N 1-4\n", "job.sh:2: "),
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
        (&["--gres", "gpu:4", "-N", "2", "--ntasks-per-node", "4", "--", "a"], gang(2, 4)),
        (&["--ntasks", "4", "--gpus-per-task", "1", "--", "a"], gang(1, 4)),
        (&["--nodes", "2", "--", "a"], gang(2, 1)),
        (&["--nodes", "1", "--ntasks", "1", "--gpus", "1", "--", "a"], None),
        (&["--", "a"], None),
    ] {
        assert_eq!(request(words).unwrap().0.gang, expected, "{words:?}");
    }
    assert!(request(&["--gpus", "4", "--", "a"]).unwrap().0.gpu_whole);
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
        (&["--gpus=4", "--ntasks=2", "--", "a"], "each process has one GPU"),
        (&["--gpus-per-task=2", "--", "a"], "a process has one GPU"),
        (&["--dependency", "afterok:1", "--", "a"], "can't wait for other jobs"),
        (&["--vram", "1G", "--exclusive", "--", "a"], "in one way"),
        (&["--priority", "12", "--", "a"], "0 (highest)"),
        (&["one.sh", "two"], "--env NAME=VALUE"),
        (&["--export", "MISSING", "--", "a"], "MISSING"),
    ] {
        let refused = request(words).unwrap_err();

        assert_eq!(refused.code(), 2, "{words:?}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}
