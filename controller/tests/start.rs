//! The program's messages if it can't start, and its answers to `--help` and the like.

use std::process::{Command, Output};

fn controller(arguments: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tessera-controller"))
        .args(arguments)
        .envs(env.iter().copied())
        .env_remove("TESSERA_DATA")
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_postgresql_it_says_how_to_get_it() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();

    let ended = controller(
        &["--data", folder, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"],
        &[("TESSERA_PG_BIN", "/no/such/folder")],
    );

    assert_eq!(ended.status.code(), Some(1));
    let said = errors(&ended);
    assert!(said.contains("apt-get install postgresql"), "{said}");
    assert!(said.contains("--database postgres://"), "{said}");
}

#[test]
fn a_check_prints_what_would_hold_and_starts_nothing() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("never-made");

    let ended = controller(&["--check", "--data", folder.to_str().unwrap()], &[]);

    assert!(ended.status.success(), "{}", errors(&ended));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("policy = \"tessera\""));
    assert!(!folder.exists());
}

#[test]
fn an_unknown_key_of_the_configuration_is_named() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("controller.toml");
    std::fs::write(&file, "data = \"/tmp\"\npolcy = \"static\"\n").unwrap();

    let ended = controller(&["--check", "--config", file.to_str().unwrap()], &[]);

    assert_eq!(ended.status.code(), Some(1));
    assert!(errors(&ended).contains("polcy"), "{}", errors(&ended));
}

#[test]
fn a_nodes_certificate_needs_an_authority_first() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let out = data.path().join("out");
    let make =
        || controller(&["node-cert", "n1", "--data", folder, "--out", out.to_str().unwrap()], &[]);

    let refused = make();
    let made = controller(&["init", "--data", folder], &[]);
    let issued = make();

    assert!(errors(&refused).contains("tessera-controller init"), "{}", errors(&refused));
    assert!(made.status.success() && issued.status.success(), "{}", errors(&issued));
    for name in ["ca.pem", "cert.pem", "key.pem"] {
        assert!(out.join(name).exists(), "{name}");
    }
}
