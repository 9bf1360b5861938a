use super::*;

fn env(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn rules(image: &str, mounts: &[&str]) -> ContainerRules {
    let mounts: Vec<String> = mounts.iter().map(|mount| (*mount).to_owned()).collect();
    ContainerRules::parse(image, &mounts, None).unwrap()
}

fn both() -> NodeRuntimes {
    let program = |name: &str| Some(format!("/usr/bin/{name}"));
    NodeRuntimes { podman: program("podman"), apptainer: program("apptainer") }
}

fn planned(rules: &ContainerRules, env: &BTreeMap<String, String>) -> ContainerPlan {
    let ground = ContainerGround {
        own: "/data/attempts/1/work",
        work_dir: Some("/home/ada/run"),
        env,
        companion: Some("/data/companion"),
        device: Some("tessera.io/slice=1".to_owned()),
        private_tmp: true,
    };
    plan(rules, &both(), false, ground).unwrap()
}

fn store() -> ImageStore {
    ImageStore { folder: "/home/ada/.local/share/containers/storage".into(), driver: "overlay" }
}

#[test]
fn a_program_runs_by_podman_with_its_slice_its_folders_and_its_variables() {
    let plan = planned(&rules("python:3.12", &["/data:/data:ro"]), &env(&[]));
    let variables = env(&[("SLURM_JOB_ID", "7"), ("LD_PRELOAD", "/shims/libcuda.so.1")]);
    let mounts = plan.all_mounts(|path| path != "/data/attempts/1/work/slurm_script");
    let program = ["python3".to_owned(), "train.py".to_owned()];

    let words =
        plan.run_words(&store(), &variables, &mounts, (&program, ContainerStreams::default()));

    let text = words.join(" ");
    assert!(text.starts_with(
        "/usr/bin/podman --log-level=error --root=/data/attempts/1/work/container/store "
    ));
    assert!(
        text.contains("--storage-opt=overlay.imagestore=/home/ada/.local/share/containers/storage")
    );
    // Podman refuses a longer path.
    assert!(text.contains(" --runroot=/boot/containers --tmpdir=/boot/libpod "));
    assert!(text.contains(" run --rm --pull=never "));
    assert!(text.contains(
        " --device=tessera.io/slice=1 --volume=/home/ada/run:/home/ada/run:rw --volume=/tmp:/tmp:rw"
    ));
    assert!(text.contains(" --volume=/data:/data:ro --workdir=/home/ada/run --env=LD_PRELOAD=/shims/libcuda.so.1 --env=SLURM_JOB_ID "));
    assert!(text.ends_with(" python:3.12 python3 train.py"));
    assert!(!text.contains("script"), "it is not there");
    assert!(!text.contains("--interactive"));
    let streams = ContainerStreams { has_input: true, is_terminal: true };
    let text = plan.exec_words(&store(), &variables, (&program, streams)).join(" ");
    assert!(text.contains(" exec --workdir=/home/ada/run --interactive --tty --env=LD_PRELOAD=/shims/libcuda.so.1 --env=SLURM_JOB_ID attempt python3 train.py"));
}

#[test]
fn a_file_is_run_by_apptainer() {
    let plan = planned(&rules("/images/a.sif", &["/data:/data:ro"]), &env(&[]));

    let words = plan.apptainer_words(&plan.all_mounts(|path| path == "/tmp"), &["true".into()]);

    let expected = "/usr/bin/apptainer exec --nv --bind /tmp:/tmp:rw --bind /data:/data:ro --pwd /home/ada/run \
                    /images/a.sif true";
    assert_eq!(words.join(" "), expected);
}

#[test]
fn a_node_without_a_runtime_and_jobs_of_root_are_refused_with_what_would_help() {
    let variables = env(&[]);
    let ground = ContainerGround {
        own: "/o",
        work_dir: None,
        env: &variables,
        companion: None,
        device: None,
        private_tmp: false,
    };
    let none = NodeRuntimes::default();
    let refused = |rules: &ContainerRules, runtimes: &NodeRuntimes, is_root| {
        plan(rules, runtimes, is_root, ground.clone()).unwrap_err().to_string()
    };
    assert!(refused(&rules("a", &[]), &none, false).contains("apt-get install podman"));
    assert!(
        refused(&rules("/a.sif", &[]), &none, false).contains("no apptainer, which runs /a.sif")
    );
    assert!(refused(&rules("a", &[]), &both(), true).contains("submit as a user"));
    // Without a folder of the job's, the attempt's own is seen.
    let planned = plan(&rules("a", &[]), &both(), false, ground).unwrap();
    assert_eq!((planned.work_dir.as_str(), planned.node_mounts[0].source.as_str()), ("/o", "/o"));
    assert!(planned.libraries.is_empty());
}

#[test]
fn the_image_sets_its_own_variables_and_the_attempt_those_of_its_slice() {
    let attempt = env(&[
        ("PATH", "/opt/bin"),
        ("LANG", "C"),
        ("EDITOR", "vi"),
        ("CUDA_VISIBLE_DEVICES", "MIG-1"),
        ("PYTHONPATH", "/data/companion"),
        ("LD_PRELOAD", "/shims/libcuda.so.1:/other.so"),
        ("LD_LIBRARY_PATH", "/shims:/home/ada/lib"),
        ("TESSERA_KERNEL_ENDPOINT", "127.0.0.1:9"),
        ("BASH_FUNC_module%%", "() { :; }"),
        (PLAN_VARIABLE, "{}"),
    ]);
    let plan = planned(&rules("a", &[]), &attempt);
    let image = [
        "PATH=/bin",
        "LANG=en_US",
        "LD_LIBRARY_PATH=/usr/local/cuda",
        "CUDA_VISIBLE_DEVICES=all",
        "PYTHONPATH=/app",
    ];

    let inside = plan.environment(&attempt, &image.map(str::to_owned));

    let expected = env(&[
        ("EDITOR", "vi"),
        ("CUDA_VISIBLE_DEVICES", "MIG-1"),
        ("PYTHONPATH", "/data/companion:/app"),
        ("LD_PRELOAD", "/shims/libcuda.so.1"),
        ("LD_LIBRARY_PATH", "/shims:/run/tessera/driver:/usr/local/cuda"),
        ("TESSERA_KERNEL_ENDPOINT", "127.0.0.1:9"),
    ]);
    assert_eq!(inside, expected);
    assert!(plan.node_mounts.contains(&ContainerMount::same("/shims")));
}

#[test]
fn a_users_mount_takes_the_place_of_the_nodes() {
    let plan = planned(&rules("a", &["/scratch:/tmp"]), &env(&[]));

    let targets: Vec<_> =
        plan.all_mounts(|_| true).into_iter().filter(|m| m.target == "/tmp").collect();

    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].source, "/scratch");
}

#[test]
fn a_step_has_the_drivers_nodes_and_libraries_by_their_places() {
    let libraries = [("libcuda.so.1".to_owned(), "/usr/lib/libcuda.so.1".to_owned())];
    let variables = env(&[]);
    let ground = ContainerGround {
        own: "/tmp/1",
        work_dir: Some("/home/ada"),
        env: &variables,
        companion: None,
        device: None,
        private_tmp: true,
    };
    let plan = plan(&rules("a", &[]), &both(), false, ground).unwrap();

    let plan = plan.with_driver(vec!["/dev/nvidia0".into()], &libraries);

    let streams = ContainerStreams::default();
    let mounts = plan.all_mounts(|_| true);
    let text = plan.run_words(&store(), &variables, &mounts, (&[], streams)).join(" ");
    assert!(text.contains(" --device=/dev/nvidia0 "), "{text}");
    assert!(text.contains(":/run/tessera/driver/libcuda.so.1:ro "), "{text}");
    assert_eq!(plan.libraries, [DRIVER_FOLDER]);
}

#[test]
fn a_slice_is_described_as_cdi_has_it() {
    let libraries = [("libcuda.so.1".to_owned(), "/usr/lib/libcuda.so.1".to_owned())];
    let described = describe_slice("1", vec!["/dev/nvidia0".into()], &libraries, "MIG-1");

    let json = serde_json::to_value(&described).unwrap();

    assert_eq!(json["cdiVersion"], "0.5.0");
    assert_eq!(json["kind"], "tessera.io/slice");
    let device = &json["devices"][0];
    assert_eq!(device["name"], "1");
    assert_eq!(device["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia0");
    assert_eq!(
        device["containerEdits"]["mounts"][0]["containerPath"],
        "/run/tessera/driver/libcuda.so.1"
    );
    assert_eq!(device["containerEdits"]["env"][1], "NVIDIA_VISIBLE_DEVICES=MIG-1");
}

#[test]
fn a_watched_program_has_the_shim_and_the_pipe_of_its_observers() {
    let variables = env(&[("TESSERA_MEMORY_PIPE", "/data/attempts/1/pipe")]);
    let mut plan = planned(&rules("a", &[]), &variables);
    let pipe = ContainerMount::same("/data/attempts/1/pipe");
    plan.node_mounts.retain(|mount| *mount != pipe);

    plan.observe("/data/attempts/1/pipe", Some("/data/shim/libcuda.so.1"));

    assert!(plan.node_mounts.contains(&pipe), "{plan:?}");
    assert!(plan.node_mounts.contains(&ContainerMount::same("/data/shim")), "{plan:?}");
    let inside = plan.environment(&variables, &[]);
    assert_eq!(inside["LD_PRELOAD"], "/data/shim/libcuda.so.1");
    assert_eq!(inside["LD_LIBRARY_PATH"], "/data/shim:/run/tessera/driver");
    // A job that shares kernel by kernel has the shim already.
    let before = plan.clone();
    plan.observe("/data/attempts/1/pipe", Some("/data/shim/libcuda.so.1"));
    assert_eq!(plan.libraries, before.libraries);
}
