//! The `tessera` command as a user would type it.

use std::process::{Command, Output};

use crate::cluster::Cluster;
use crate::programs::programs;

/// Runs `tessera` as the user ada against a cluster.
///
/// # Panics
///
/// The program is not built.
#[track_caller]
pub fn tessera(cluster: &Cluster, words: &[&str]) -> Output {
    Command::new(programs().path("tessera"))
        .args(words)
        .env("TESSERA_URL", format!("http://{}", cluster.http()))
        .env("TESSERA_TOKEN", cluster.token_for("ada", "admin"))
        .output()
        .expect("tessera is built")
}

/// Runs what has to succeed; returns its output on both outputs.
///
/// # Panics
///
/// It fails.
#[track_caller]
pub fn done(cluster: &Cluster, words: &[&str]) -> String {
    let output = tessera(cluster, words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}");
    text
}

/// Runs what has to be refused by the controller, which is exit code 1; returns its output.
///
/// # Panics
///
/// It succeeds, or fails otherwise.
#[track_caller]
pub fn refused(cluster: &Cluster, words: &[&str]) -> String {
    let output = tessera(cluster, words);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
    err
}
