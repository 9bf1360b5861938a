//! Every option and every settings key of the daemons is in the operations guide, and every option of
//! `tessera` is on some page.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use tessera_load_tests::programs::programs;

/// Options that every program has and that explain themselves.
const COMMON: [&str; 2] = ["--help", "--version"];

fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(name)).unwrap()
}

fn all_pages() -> io::Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut text = fs::read_to_string(root.join("README.md"))?;
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "md") {
            text += &fs::read_to_string(path)?;
        }
    }
    Ok(text)
}

fn help(program: &str, verbs: &[String]) -> String {
    let command = &mut Command::new(programs().path(program));
    let shown = command.args(verbs).arg("--help").output().unwrap();
    assert!(shown.status.success(), "{program} {verbs:?} --help");
    String::from_utf8(shown.stdout).unwrap()
}

/// Returns the verbs that a help text lists.
fn verbs(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // Continued descriptions are indented further.
    let begun = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = begun.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Returns the long options at the beginnings of a help text's lines.
fn options(help: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines
        .filter_map(|line| line.split_once("--"))
        .filter(|(before, _)| before.len() <= 4)
        .map(|(_, name)| name.split(|c| !is_part(c)).next().unwrap_or_default())
        .map(|name| format!("--{name}"))
        .filter(|option| !COMMON.contains(&option.as_str()))
        .collect()
}

/// Returns the options of a program and of its verbs, each with the command that takes it.
fn all_options(program: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let help = help(program, &path);
        let command = [&[program.to_owned()], path.as_slice()].concat().join(" ");
        found.extend(options(&help).into_iter().map(|option| (command.clone(), option)));
        open.extend(verbs(&help).into_iter().map(|verb| [path.as_slice(), &[verb]].concat()));
    }
    found
}

fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

fn missing(programs: &[&str], text: &str) -> Vec<String> {
    let all = programs.iter().flat_map(|program| all_options(program));
    let missing: BTreeSet<String> = all
        .filter(|(_, option)| !names(text, option))
        .map(|(command, option)| format!("{command} {option}"))
        .collect();
    missing.into_iter().collect()
}

#[test]
fn every_option_of_a_daemon_is_in_the_operations_guide() {
    let daemons = ["tessera-controller", "tessera-agent", "tessera-shepherd"];

    let missing = missing(&daemons, &page("docs/operations.md"));

    assert!(missing.is_empty(), "not in docs/operations.md: {missing:#?}");
}

#[test]
fn every_option_of_the_command_is_in_some_page() {
    let missing = missing(&["tessera"], &all_pages().unwrap());

    assert!(missing.is_empty(), "not in README.md or docs: {missing:#?}");
}

/// Returns the keys that a daemon's settings file may have, as its error for an unknown one lists
/// them.
fn settings_keys(program: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    fs::write(&file, "no_such_key = 1\n").unwrap();
    let done = Command::new(programs().path(program))
        .args(["--check", "--data"])
        .arg(folder.path())
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert!(!done.status.success(), "{program} accepts an unknown key");
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    let listed = error.split_once("expected one of").map(|(_, listed)| listed);
    let listed = listed.unwrap_or_else(|| panic!("{program} does not list its keys: {error}"));
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_settings_key_of_a_daemon_is_in_the_operations_guide() {
    let guide = page("docs/operations.md");

    for program in ["tessera-controller", "tessera-agent"] {
        let keys = settings_keys(program);
        assert!(keys.len() > 15, "{program}: {keys:?}");
        // Tables are written in brackets. The controller's keys are its options without the hyphens in
        // front; the guide lists those.
        let is_listed = |key: &&String| {
            let forms = [format!("`{key}`"), format!("`[{key}]`"), format!("`--{key}")];
            forms.iter().any(|form| guide.contains(form))
        };
        let missing: Vec<&String> = keys.iter().filter(|key| !is_listed(key)).collect();
        assert!(missing.is_empty(), "{program}: not in docs/operations.md: {missing:#?}");
    }
}

#[test]
fn the_printed_help_text_is_parsed() {
    let help = "Does it.\n\nUsage: a [OPTIONS]\n\nCommands:\n  run      Runs\n           more\n  help     \
                Prints\n\nOptions:\n  -t, --time-limit <TIME>  At most, as --other\n      --check  \
                Checks\n  -h, --help  Prints\n";

    assert_eq!(verbs(help), ["run"]);
    assert_eq!(options(help), ["--check", "--time-limit"].map(str::to_owned).into());
    assert!(names("give `--check`", "--check") && !names("--check-all", "--check"));
}
