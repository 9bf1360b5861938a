//! A node whose disk is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tessera_api_types::SubmitRequest;
use tessera_load_tests::cluster::{Plan, SOON, script};
use tessera_load_tests::wait;

/// A small file system over a folder, unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this machine doesn't let us mount.
    fn over(folder: &Path) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=600k", "tmpfs"])
            .arg(folder)
            .status()
            .is_ok_and(|status| status.success());
        mounted.then(|| Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_starts_nothing_harms_nothing_and_is_reported() {
    let mut cluster = Plan::new().node("n1", "a100-40gb").start();
    let data = cluster.agent_data(0);
    cluster.agents[0].kill();
    let identity: Vec<_> = fs::read_dir(data.join("identity"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
        .collect();
    let Some(_disk) = SmallDisk::over(&data) else {
        eprintln!("SKIPPED: mounting a small disk needs root on this machine");
        return;
    };
    fs::create_dir(data.join("identity")).unwrap();
    for (name, bytes) in identity {
        fs::write(data.join("identity").join(name), bytes).unwrap();
    }
    cluster.agents[0].start();
    cluster.wait_ready();
    let go = cluster.scratch().join("go");
    let waits = "echo before; while [ ! -e \"$GO\" ]; do sleep 0.05; done; exit 0";
    let neighbour = cluster
        .submit(&SubmitRequest {
            env: [("GO".into(), go.display().to_string())].into(),
            ..script(waits)
        })
        .job_id;
    cluster.wait_job(neighbour, SOON, "running");

    // Fails when the disk is full, as intended.
    let _ = fs::write(data.join("filler"), vec![0_u8; 2_000_000]);
    let job = cluster.submit(&script("echo hi")).job_id;
    let message = wait::until(SOON, "a refusal for lack of space", || {
        cluster.job(job).attempt_list.first().and_then(|attempt| attempt.detail.clone())
    });

    assert!(message.contains("disk is full") || message.contains("No space left"), "{message}");
    assert_eq!(cluster.job(job).retries_left, 0, "it received none, and lost none");
    assert_eq!(cluster.job(neighbour).job.state, "running");
    fs::remove_file(data.join("filler")).unwrap();
    cluster.wait_job(job, SOON, "succeeded");
    fs::write(&go, "").unwrap();
    cluster.wait_job(neighbour, SOON, "succeeded");
    assert_eq!(cluster.logs(job), "hi\n");
    assert_eq!(cluster.logs(neighbour), "before\n");
}
