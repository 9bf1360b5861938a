//! Jobs whose programs play recordings of kernels on the CUDA stand-in.

use std::fs;
use std::path::PathBuf;

use tessera_api_types::SubmitRequest;

use crate::cluster::{Cluster, command};
use crate::programs::programs;

/// Finds the driver's stand-in, as `./x build` leaves it.
fn driver() -> PathBuf {
    let folder = programs().path("../stand-in");
    assert!(folder.join("libcuda.so.1").is_file(), "no CUDA stand-in: run ./x build");
    folder.canonicalize().unwrap()
}

/// Describes a job that plays a recording under kernel-level sharing.
///
/// # Panics
///
/// There is no stand-in for the driver.
pub fn player(cluster: &Cluster, name: &str, priority: u8, steps: &str) -> SubmitRequest {
    let recording = cluster.scratch().join(format!("{name}.player"));
    fs::write(&recording, format!("player 1\nmemory 64MiB\n{steps}")).unwrap();
    let program = programs().path("tessera-sim-player").display().to_string();
    SubmitRequest {
        name: Some(name.to_owned()),
        share: Some("kernel".to_owned()),
        gpu_memory_bytes: Some(1 << 30),
        priority: Some(priority),
        task_key: Some(name.to_owned()),
        env: [("LD_LIBRARY_PATH".to_owned(), driver().display().to_string())].into(),
        ..command([program, recording.display().to_string()])
    }
}
