//! Every Tessera command in the operations guide exists, with the options that are shown.

use std::collections::BTreeSet;
use std::process::Command;

use tessera_load_tests::programs::programs;

const OURS: [&str; 3] = ["tessera", "tessera-agent", "tessera-controller"];

/// Splits a line as a shell would, with nothing but double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn commands(guide: &str) -> Vec<Vec<String>> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in guide.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            found.push(words(command));
        }
    }
    found
}

#[test]
fn every_command_of_ours_in_the_operations_guide_exists() {
    let guide = include_str!("../../../docs/operations.md");
    let ours: Vec<_> =
        commands(guide).into_iter().filter(|words| OURS.contains(&words[0].as_str())).collect();
    assert!(ours.len() > 30, "only {} commands were found", ours.len());

    for words in &ours {
        // Everything before the last word is read first, and unknown options are refused. Words after a
        // script belong to it.
        let mut arguments = words[1..].to_vec();
        let script = words.get(1).is_some_and(|verb| verb == "submit");
        arguments.insert(arguments.len() - usize::from(script), "--help".to_owned());
        let output = Command::new(programs().path(&words[0])).args(&arguments).output().unwrap();

        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {problem}", words.join(" "));
    }
    let verbs: BTreeSet<_> = ours.iter().filter_map(|words| words.get(1)).collect();
    for verb in ["drain", "undrain", "quarantine", "clear", "doctor", "events", "gpus", "layouts"] {
        assert!(verbs.contains(&verb.to_owned()), "no runbook uses {verb}");
    }
}

#[test]
fn a_command_that_does_not_exist_would_be_found() {
    for wrong in [["drain", "node-a", "--force"], ["gpus", "layout", "resize"]] {
        let output =
            Command::new(programs().path("tessera")).args(wrong).arg("--help").output().unwrap();

        assert!(!output.status.success(), "{wrong:?}");
    }
}
