//! Finds files of the repository, and reports what a test can't check.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Reads a file of the repository.
pub fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns whether a program is installed; if it isn't, reports what stays unchecked.
pub fn have(program: &str, otherwise: &str) -> bool {
    let found = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    });
    if !found {
        skip(&format!("{program} is not installed: {otherwise}"));
    }
    found
}

/// Reports that something was not checked.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// Returns whether tests that need minutes are to run.
pub fn long(what: &str) -> bool {
    let long = std::env::var_os("TESSERA_LONG_TESTS").is_some_and(|value| value == "1");
    if !long {
        skip(&format!("{what}: it needs minutes (./x test --long)"));
    }
    long
}

/// Runs a command and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns all that a command printed.
pub fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Returns every name of a metric in a text, with the suffixes of histograms removed if the
/// metric without them is known.
pub fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("tessera_"))
        .map(|word| {
            let base = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end));
            base.filter(|base| base.ends_with("_seconds") || base.ends_with("_ratio"))
                .unwrap_or(word)
                .to_owned()
        })
        .collect()
}

/// Returns the names of all metrics by the code that exports them.
pub fn known_metrics() -> BTreeSet<String> {
    let names = read("crates/telemetry/src/names.rs");
    let (metrics, _) = names.split_once("pub mod span").unwrap();
    constants(metrics).into_iter().filter(|name| name.starts_with("tessera_")).collect()
}

/// Returns the strings of all constants in a source.
pub fn constants(source: &str) -> BTreeSet<String> {
    let lines = source.lines().filter(|line| line.trim_start().starts_with("pub const "));
    lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}
