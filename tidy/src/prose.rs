//! The check of every text in the repository: the vocabulary, and the length of sentences.

use std::fmt;
use std::path::Path;

use crate::files::{self, SourceFile};
use crate::rust::DescribedItem;
use crate::sentences::{Paragraph, Sentence, WORDS_MAX};
use crate::{markdown, rust, scripts, vocabulary};

/// Which texts are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextKind {
    /// What users read: Markdown, messages, help texts, the descriptions of the REST API.
    Visible,
    /// The comments that only readers of the code see.
    Comments,
    /// The names of types, functions, modules and constants; only their words are checked.
    Names,
}

/// One text that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub path: String,
    /// The line on which the sentence begins.
    pub line: usize,
    /// Which rule, and what to write instead.
    pub rule: String,
    /// Its text, without line breaks.
    pub sentence: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, sentence } = self;
        write!(f, "{path}:{line}: {rule} (docs/glossary.md): {sentence}")
    }
}

/// The folders whose Rust sources are checked.
const SOURCES: [&str; 9] = [
    "api",
    "controller",
    "crates",
    "features",
    "gpu-agent",
    "kernel-shim",
    "lab",
    "load-tests",
    "tidy",
];
/// Sources whose doc comments users read: help texts and the descriptions of the REST API.
const VISIBLE_COMMENTS: [&str; 4] =
    ["api/", "controller/src/http", "controller/src/settings", "gpu-agent/src/config"];
/// Folders, and single files, whose comments and names are held to the vocabulary: a finding
/// there fails `./x lint`. A folder is added as soon as it has no findings left.
pub const ENFORCED: &[&str] = &[
    "api",
    "controller",
    "crates",
    "features",
    "gpu-agent",
    "kernel-shim",
    "lab",
    "load-tests",
    "tidy",
];
/// Drivers of benchmarks and tools: what they print is for readers of the code.
const INTERNAL: [&str; 2] = ["load-tests/", "tidy/"];
/// Folders with scripts in shell and Python.
const SCRIPTS: [&str; 4] = ["gpu-agent/companion", "load-tests", "packaging", "python"];
/// Comments that only repeat the name of what they describe.
const QUESTION_WORDS: [&str; 10] = [
    "Which.",
    "What.",
    "When.",
    "Where.",
    "Who.",
    "Whose.",
    "Why.",
    "How.",
    "Whether.",
    "How many.",
];
/// Pages that quote what is banned.
const QUOTING: [&str; 2] = ["docs/glossary.md", "tidy/src/vocabulary.rs"];

/// A text that is not prose, or that cites a name, with a banned word that can't be replaced.
struct Exception {
    path: &'static str,
    /// The whole text, as a finding shows it.
    text: &'static str,
}

/// Every exception, with its reason.
const EXCEPTIONS: [Exception; 10] = [
    // The address by which validators know the dialect of JSON Schema.
    Exception {
        path: "api/cli/src/schema.rs",
        text: "https://json-schema.org/draft/2020-12/schema",
    },
    // Keys in the JSON of recorded rounds: rounds that are stored already have them.
    Exception { path: "crates/placement/src/record.rs", text: "told" },
    Exception { path: "crates/placement/src/record.rs", text: "said" },
    Exception { path: "crates/placement/src/record/answers.rs", text: "beside" },
    Exception { path: "crates/placement/src/decision.rs", text: "seats" },
    // A setting that recorded rounds and users name.
    Exception { path: "crates/placement/src/policy/tessera.rs", text: "crowd" },
    // A key in stored training samples.
    Exception { path: "crates/predict/src/colocation.rs", text: "company" },
    // A folder of systemd, which gives it its name.
    Exception {
        path: "gpu-agent/src/doctor/system.rs",
        text: "/etc/systemd/system/multi-user.target.wants",
    },
    // One of the two mathematicians who gave a distribution its name.
    Exception {
        path: "crates/predict/src/random.rs",
        text: "The sum of twelve even numbers stands in for the normal distribution (Irwin–Hall).",
    },
    // The title of a paper.
    Exception {
        path: "lab/policies/src/miso.rs",
        text: "Source: Li et al., MISO: Exploiting Multi-Instance GPU Capability on \
               Multi-Tenant GPU Clusters, SoCC 2022, §4 (trial under MPS, optimiser over \
               partitions) and its public program.",
    },
];

/// Checks every text of one kind in the repository, sorted by file and line.
///
/// # Errors
///
/// If a file can't be read, or a source isn't Rust.
pub fn check_repository(root: &Path, kind: TextKind) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if kind == TextKind::Visible {
        for file in pages(root)? {
            let paragraphs = markdown::paragraphs(&file.text, 1);
            findings.extend(check(&file.path, &paragraphs, kind));
        }
        for file in scripts(root)? {
            findings.extend(check(&file.path, &scripts::texts(&file.text), kind));
        }
    }
    for folder in SOURCES.into_iter().filter(|folder| root.join(folder).is_dir()) {
        for file in files::read_files(root, folder, ".rs")? {
            if QUOTING.contains(&file.path.as_str()) {
                continue;
            }
            let texts = rust::texts(&file.text)
                .map_err(|error| anyhow::anyhow!("{}: {error}", file.path))?;
            let is_product = !files::is_test_file(&file.path)
                && !INTERNAL.iter().any(|folder| file.path.starts_with(folder));
            let is_visible =
                is_product && VISIBLE_COMMENTS.iter().any(|v| file.path.starts_with(v));
            let checked = match kind {
                TextKind::Visible if is_visible => [texts.strings, texts.comments].concat(),
                TextKind::Visible if is_product => texts.strings,
                TextKind::Comments if !is_visible => texts.comments,
                TextKind::Names => texts.names,
                TextKind::Visible | TextKind::Comments => Vec::new(),
            };
            findings.extend(check(&file.path, &checked, kind));
            if kind == TextKind::Comments {
                findings.extend(check(&file.path, &texts.plain_comments, kind));
                findings.extend(check_functions(&file.path, &texts.functions));
                findings.extend(check_repetitions(&file.path, &texts.described));
            }
        }
    }
    findings.sort();
    Ok(findings)
}

/// Finds the comments of functions that begin with a question word, such as "Whether it is full.".
fn check_functions(path: &str, comments: &[Paragraph]) -> Vec<Finding> {
    let sentences = comments.iter().filter_map(|comment| comment.sentences().into_iter().next());
    let wrong = sentences.filter(|sentence| {
        let first = sentence.text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        QUESTION_WORDS.iter().any(|word| word.trim_end_matches('.') == first)
    });
    wrong
        .map(|sentence| Finding {
            path: path.to_owned(),
            line: sentence.line,
            rule: "a function's comment begins with a verb, such as \"Returns whether\"".to_owned(),
            sentence: sentence.text,
        })
        .collect()
}

/// Words that add nothing to a name.
const ARTICLES: [&str; 11] =
    ["the", "a", "an", "its", "their", "of", "it", "is", "are", "in", "and"];

/// Finds the comments that only repeat the name of what they describe, such as "The job." on a field `job`.
fn check_repetitions(path: &str, items: &[DescribedItem]) -> Vec<Finding> {
    let singular = |word: &str| word.trim_end_matches('s').to_owned();
    let repeats = items.iter().filter_map(|item| {
        let [sentence]: [Sentence; 1] = item.comment.sentences().try_into().ok()?;
        let known: Vec<String> = item.name.split(' ').map(singular).collect();
        let text = sentence.text.to_lowercase();
        let mut words = text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty() && *word != "s" && !ARTICLES.contains(word));
        words.all(|word| known.contains(&singular(word))).then_some(sentence)
    });
    repeats
        .map(|sentence| Finding {
            path: path.to_owned(),
            line: sentence.line,
            rule: "a comment that only repeats the name describes nothing: say what the value is, \
                   or leave it out"
                .to_owned(),
            sentence: sentence.text,
        })
        .collect()
}

/// Checks the comments and the names in the folders of [`ENFORCED`].
///
/// # Errors
///
/// As [`check_repository`].
pub fn check_enforced(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let mut findings = check_repository(root, TextKind::Comments)?;
    findings.extend(check_repository(root, TextKind::Names)?);
    findings.retain(|finding| is_enforced(&finding.path, ENFORCED));
    findings.sort();
    Ok(findings)
}

/// Returns whether a path is one of the folders or files, or below one of them.
fn is_enforced(path: &str, enforced: &[&str]) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    enforced.iter().any(|folder| path.strip_prefix(folder).is_some_and(is_below))
}

fn pages(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let mut pages = files::read_files(root, "", ".md")?;
    pages.retain(|page| !QUOTING.contains(&page.path.as_str()));
    Ok(pages)
}

/// Reads the scripts whose texts people read, in shell and Python.
fn scripts(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let mut scripts = vec![files::read_file(root, &root.join("x"))?];
    for folder in SCRIPTS.into_iter().filter(|folder| root.join(folder).is_dir()) {
        for ending in [".py", ".sh"] {
            scripts.extend(files::read_files(root, folder, ending)?);
        }
    }
    Ok(scripts)
}

fn check(path: &str, paragraphs: &[Paragraph], kind: TextKind) -> Vec<Finding> {
    let mut findings = Vec::new();
    for sentence in paragraphs.iter().flat_map(Paragraph::sentences) {
        if EXCEPTIONS.iter().any(|except| except.path == path && except.text == sentence.text) {
            continue;
        }
        let mut add = |rule: String| {
            let (line, sentence) = (sentence.line, sentence.text.clone());
            findings.push(Finding { path: path.to_owned(), line, rule, sentence });
        };
        for (form, instead) in vocabulary::banned_words(&sentence.text) {
            add(format!("\"{form}\" is not used: {instead}"));
        }
        if let Some((form, instead)) = vocabulary::own_after_noun(&sentence.text) {
            add(format!("\"{form}\" after its noun is not used: {instead}"));
        }
        if QUESTION_WORDS.contains(&sentence.text.as_str()) {
            add("a question word describes nothing: write what the value is".to_owned());
        }
        let words = sentence.word_count();
        if kind != TextKind::Names && words > WORDS_MAX {
            add(format!("{words} words, at most {WORDS_MAX}"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(markdown: &str) -> Vec<(usize, String)> {
        let findings = check("a.md", &markdown::paragraphs(markdown, 1), TextKind::Visible);
        findings.into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn plain_sentences_pass() {
        let good = "# Operations\n\nBoth suitable GPUs are in use, and 7 jobs are ahead in the queue.\n\
                    Past usage is weighted by half for each day of age.\n";

        assert_eq!(rules(good), []);
    }

    #[test]
    fn a_word_of_the_old_vocabulary_is_found_with_its_line_and_its_successor() {
        let found = rules("Fine.\n\nA teacher\nis fine. The node\nis told.\n");

        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [3, 4]);
        assert_eq!(found[1].1, "\"told\" is not used: report, return, notify, state");
    }

    #[test]
    fn a_sentence_of_31_words_is_found_and_one_of_30_passes() {
        let sentence = |words: usize| format!("{}.\n", vec!["word"; words].join(" "));

        assert_eq!(rules(&sentence(30)), []);
        assert_eq!(rules(&sentence(31)), [(1, "31 words, at most 30".to_owned())]);
    }

    #[test]
    fn an_exception_holds_for_its_file_and_its_whole_text_only() {
        let found = |path: &str, text: &str| {
            check(path, &[Paragraph::new(1, text)], TextKind::Visible).len()
        };

        assert_eq!(found("crates/placement/src/record.rs", "told"), 0);
        assert_eq!(found("crates/placement/src/record.rs", "the node is told"), 1);
        assert_eq!(found("crates/placement/src/round.rs", "told"), 1);
    }

    #[test]
    fn a_functions_comment_that_begins_with_a_question_word_is_found_and_a_fields_is_fine() {
        let source = "/// Whether it is full.\n#[must_use]\npub fn is_full() {}\n\
                      /// Returns whether it is full.\nfn full() {}\n\
                      struct A {\n    /// Whether it is full.\n    pub full: fn(),\n}\n";

        let found = check_functions("a.rs", &rust::texts(source).unwrap().functions);

        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_comment_that_only_repeats_a_name_is_found_and_one_that_adds_to_it_is_fine() {
        let source = "struct A {\n    /// The jobs.\n    job: u8,\n    /// The node's name.\n    node_name: u8,\n    \
                      /// The job that waits.\n    next_job: u8,\n    /// The job.\n    ///\n    /// Never 0.\n    job_id: u8,\n}\n";

        let found = check_repetitions("a.rs", &rust::texts(source).unwrap().described);

        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn a_folder_is_enforced_with_all_below_it_and_without_its_namesakes() {
        let enforced = ["api", "crates/model/src/mig.rs"];

        for path in ["api/cli/src/main.rs", "crates/model/src/mig.rs"] {
            assert!(is_enforced(path, &enforced), "{path}");
        }
        for path in ["apis/src/lib.rs", "crates/model/src/mig/plan.rs", "lab/api/src/lib.rs"] {
            assert!(!is_enforced(path, &enforced), "{path}");
        }
    }

    #[test]
    fn every_enforced_folder_exists() {
        let root = files::repository();

        for folder in ENFORCED {
            assert!(root.join(folder).exists(), "{folder} is gone: correct ENFORCED");
        }
    }

    #[test]
    fn code_and_addresses_are_not_counted() {
        let markdown =
            "Run `told told told` as [the guide](docs/told.md) shows.\n\n```\ntold\n```\n";

        assert_eq!(rules(markdown), []);
    }

    #[test]
    fn the_message_names_file_line_sentence_and_glossary() {
        let findings =
            check("docs/a.md", &markdown::paragraphs("The hall is full.", 9), TextKind::Visible);

        assert_eq!(
            findings[0].to_string(),
            "docs/a.md:9: \"hall\" is not used: capacity search (docs/glossary.md): \
             The hall is full."
        );
    }
}
