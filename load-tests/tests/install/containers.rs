//! The images and the compose file, on a Docker engine.

use std::process::Command;

use super::tools::{long, root, skip};

#[test]
fn the_compose_file_is_a_cluster_that_survives_its_containers() {
    if !long("images are built and started") {
        return;
    }
    let engine = Command::new("docker").args(["info", "--format", "{{.ServerVersion}}"]).output();
    if !engine.is_ok_and(|output| output.status.success()) {
        skip("there is no Docker engine: images are not built");
        return;
    }
    let built = Command::new(root().join("x")).arg("images").status().unwrap();
    assert!(built.success(), "the images don't build");

    let tested = Command::new(root().join("docker/test")).status().unwrap();

    assert!(tested.success(), "docker/test failed");
}
