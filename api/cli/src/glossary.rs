//! `docs/glossary.md` has every word that the tables of the command show. Read by the tests below.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tessera_model::life::{JobState, Outcome};

/// The files whose texts are Slurm's own, or no part of the program.
const SKIPPED: [&str; 3] = ["/slurm/", "tests.rs", "/glossary.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the string literals of a piece of code without escapes.
fn literals(code: &str) -> impl Iterator<Item = &str> {
    code.split('"').skip(1).step_by(2)
}

/// Returns the code of a function, by the line that it begins with.
fn body<'s>(source: &'s str, begin: &str) -> &'s str {
    let (_, rest) = source.split_once(begin).unwrap_or_else(|| panic!("{begin} is gone"));
    let end = rest.find("\n}\n").unwrap_or(rest.len());
    let end = rest.find("\n    }\n").unwrap_or(end).min(end);
    &rest[..end]
}

/// Returns the words that are not in the glossary, as code.
fn missing<'w>(words: impl IntoIterator<Item = &'w str>) -> BTreeSet<&'w str> {
    let glossary = read("docs/glossary.md");
    words.into_iter().filter(|word| !glossary.contains(&format!("`{word}`"))).collect()
}

#[test]
fn every_state_reason_and_verdict_is_in_the_glossary() {
    let decision = read("crates/placement/src/decision.rs");
    let view = read("crates/placement/src/view.rs");
    let candidates = read("crates/placement/src/explain/candidates.rs");
    let describe = read("controller/core/src/describe.rs");
    let of_enums = JobState::ALL.iter().map(|state| state.word());
    let of_enums = of_enums.chain(Outcome::ALL.iter().map(|outcome| outcome.word()));
    let is_word = |text: &&str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let verdicts: Vec<&str> = literals(&candidates).filter(is_word).collect();
    let reasons: Vec<&str> = literals(body(&decision, "pub const fn word(self)")).collect();
    assert!(verdicts.len() > 10 && reasons.len() > 10, "{verdicts:?} {reasons:?}");

    let words = of_enums
        .chain(verdicts)
        .chain(reasons)
        .chain(literals(body(&view, "pub const fn word(self)")))
        .chain(literals(body(&describe, "fn node_state(")))
        .chain(literals(body(&describe, "fn instance_state(")));
    let missing = missing(words);

    assert!(missing.is_empty(), "not in docs/glossary.md: {missing:?}");
}

/// Returns the sources of the command below a folder.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if !SKIPPED.iter().any(|part| name.contains(part)) {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
    found
}

/// Returns the headings of the tables in a source.
fn headings(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for begin in
        ["let header =", "let titles =", "let figures =", "const HEADER: &[&str] =", "table(Some("]
    {
        for (at, _) in source.match_indices(begin) {
            let rest = source[at + begin.len()..].trim_start().trim_start_matches('&');
            if let Some(list) = rest.strip_prefix('[') {
                found.extend(literals(list.split(']').next().unwrap_or_default()));
            }
        }
    }
    let columns = source.lines().filter(|line| line.trim_start().starts_with("column("));
    found.extend(columns.filter_map(|line| literals(line).nth(1)));
    found.retain(|heading| !heading.is_empty());
    found
}

#[test]
fn every_heading_of_a_table_is_in_the_glossary() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let headings: BTreeSet<&str> = sources.iter().flat_map(|source| headings(source)).collect();
    assert!(headings.len() > 120, "{headings:?}");

    let missing = missing(headings);

    assert!(missing.is_empty(), "not in docs/glossary.md: {missing:?}");
}

#[test]
fn headings_are_found_in_code() {
    let source = "let header =\n    [\"A\", \"B\"];\ntable(Some(&[\"C\"]), rows)\n\
                  let header = (!no).then_some(HEADER);\n    column(None, \"d\", \"D\", cell),\n";

    assert_eq!(headings(source), ["A", "B", "C", "D"]);
}
