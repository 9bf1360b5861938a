//! The images and the compose file, on a Docker engine.

use std::process::Command;

use super::packages::build_packages;
use super::tools::{have, long, root, run, skip};

pub fn have_engine(otherwise: &str) -> bool {
    let engine = Command::new("docker").args(["info", "--format", "{{.ServerVersion}}"]).output();
    let found = engine.is_ok_and(|output| output.status.success());
    if !found {
        skip(&format!("there is no Docker engine: {otherwise}"));
    }
    found
}

#[test]
fn the_compose_file_is_a_cluster_that_survives_its_containers() {
    if !long("images are built and started") {
        return;
    }
    if !have_engine("images are not built") {
        return;
    }
    let built = Command::new(root().join("x")).arg("images").status().unwrap();
    assert!(built.success(), "the images don't build");

    let tested = Command::new(root().join("docker/test")).status().unwrap();

    assert!(tested.success(), "docker/test failed");
}

#[test]
fn the_playbook_makes_a_cluster_of_containers_and_changes_nothing_the_second_time() {
    if !long("hosts are made as containers")
        || !have("ansible-playbook", "the role is not run (Debian package ansible-core)")
        || !have_engine("the role is not run")
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    if !build_packages(folder.path(), "1") {
        return;
    }

    let shown = run(Command::new(root().join("packaging/ansible/test")).arg(folder.path()));

    assert!(shown.contains("a job ran on all 10 nodes"), "{shown}");
}

#[test]
fn compose_has_the_services_that_the_page_promises() {
    let compose = super::tools::read("docker/compose.yaml");

    for service in [
        "postgres",
        "controller",
        "invitations",
        "node-a",
        "node-b",
        "prometheus",
        "grafana",
        "collector",
    ] {
        assert!(compose.contains(&format!("\n  {service}:\n")), "{service}");
    }
    assert!(compose.contains("tessera node invite") && compose.contains("tessera-agent join"));
    // Only loopback, and nothing of the database.
    for line in compose.lines().filter(|line| line.trim_start().starts_with("ports:")) {
        assert!(line.contains("\"127.0.0.1:"), "{line}");
    }
}
