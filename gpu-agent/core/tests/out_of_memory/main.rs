//! Recognition over the corpus: messages of programs that ran out of GPU memory, and as many of programs that
//! mention it and did not. The rules were written on the files `written-*`; the files `held-out-*` were
//! collected afterwards, and no rule was changed for single entries of them.

use tessera_agent_core::out_of_memory::{MemoryEvidence, RefusedMemory, recognise, text};
use tessera_model::life::ProgramExit;
use tessera_model::{Bytes, Millis};

const WRITTEN: [(&str, bool); 2] =
    [(include_str!("written-out-of-memory.txt"), true), (include_str!("written-other.txt"), false)];
const HELD_OUT: [(&str, bool); 2] = [
    (include_str!("held-out-out-of-memory.txt"), true),
    (include_str!("held-out-other.txt"), false),
];

/// The slice of every entry: only the ratio of the peak to it matters.
const SLICE_MIB: u64 = 10_000;

/// One end of a program.
#[derive(Debug)]
struct CorpusEntry {
    stack: String,
    exit: ProgramExit,
    refused: Option<RefusedMemory>,
    peak: Option<Bytes>,
    output: String,
    is_out_of_memory: bool,
}

fn entries(files: &[(&str, bool)]) -> Vec<CorpusEntry> {
    let of_file = |(file, is_out_of_memory): &(&str, bool)| {
        let mut entries: Vec<CorpusEntry> = Vec::new();
        for line in file.lines() {
            if let Some(head) = line.strip_prefix("@ ") {
                entries.push(entry(head, *is_out_of_memory));
            } else if let Some(last) = entries.last_mut() {
                last.output.push_str(line);
                last.output.push('\n');
            }
        }
        entries
    };
    files.iter().flat_map(of_file).collect()
}

fn entry(head: &str, is_out_of_memory: bool) -> CorpusEntry {
    let words: Vec<&str> = head.split(' ').collect();
    let [stack, exit, refused, peak] = words[..] else { panic!("not a head: {head:?}") };
    let exit = match exit.strip_prefix('S') {
        Some(signal) => ProgramExit::Signal(signal.parse().unwrap()),
        None => ProgramExit::Code(exit.parse().unwrap()),
    };
    let refused = match refused {
        "end" => Some(RefusedMemory {
            given_up: 1,
            before_end: Millis::from_secs(2),
            iterations_after: 0,
        }),
        "survived" => Some(RefusedMemory {
            given_up: 1,
            before_end: Millis::from_secs(90),
            iterations_after: 3,
        }),
        "none" => Some(RefusedMemory::default()),
        "unseen" => None,
        other => panic!("what an observer saw: {other:?}"),
    };
    let peak = peak.parse().ok().map(|percent: u64| Bytes::from_mib(SLICE_MIB / 100 * percent));
    CorpusEntry {
        stack: stack.to_owned(),
        exit,
        refused,
        peak,
        output: String::new(),
        is_out_of_memory,
    }
}

/// Precision and recall in thousandths, with what was wrong.
struct Score {
    precision: usize,
    recall: usize,
    wrong: Vec<String>,
}

fn score(entries: &[CorpusEntry], is_recognised: impl Fn(&CorpusEntry) -> bool) -> Score {
    let (mut right, mut missed, mut false_alarms) = (0, 0, 0);
    let mut wrong = Vec::new();
    for entry in entries {
        let found = is_recognised(entry);
        match (found, entry.is_out_of_memory) {
            (true, true) => right += 1,
            (false, true) => missed += 1,
            (true, false) => false_alarms += 1,
            (false, false) => {}
        }
        if found != entry.is_out_of_memory {
            let first = entry.output.lines().next().unwrap_or_default();
            wrong.push(format!("{} (really {}): {first}", entry.stack, entry.is_out_of_memory));
        }
    }
    Score {
        precision: right * 1_000 / (right + false_alarms).max(1),
        recall: right * 1_000 / (right + missed).max(1),
        wrong,
    }
}

/// Entries in the form of programs that run with `2>&1 | tee`.
fn by_text(entry: &CorpusEntry) -> bool {
    text::find(&entry.output, "").is_some()
}

fn with_evidence(entry: &CorpusEntry) -> bool {
    let text = text::find("", &entry.output);
    let evidence = MemoryEvidence {
        exit: entry.exit,
        text: text.as_ref(),
        refused: entry.refused,
        peak: entry.peak,
        slice: Some(Bytes::from_mib(SLICE_MIB)),
    };
    recognise(&evidence).is_some()
}

fn check(name: &str, entries: &[CorpusEntry], how: impl Fn(&CorpusEntry) -> bool, least: usize) {
    let Score { precision, recall, wrong } = score(entries, how);
    println!("{name}: {} entries, precision {precision} ‰, recall {recall} ‰", entries.len());
    wrong.iter().for_each(|wrong| println!("  {wrong}"));
    assert!(precision >= least && recall >= least, "{name}: {precision} ‰, {recall} ‰: {wrong:#?}");
}

#[test]
fn text_alone_recognises_95_of_100() {
    check("text, written", &entries(&WRITTEN), by_text, 950);
    check("text, held out", &entries(&HELD_OUT), by_text, 950);
    let all: Vec<CorpusEntry> = entries(&WRITTEN).into_iter().chain(entries(&HELD_OUT)).collect();
    check("text, all", &all, by_text, 950);
}

#[test]
fn text_with_refusals_and_memory_recognises_99_of_100() {
    check("evidence, written", &entries(&WRITTEN), with_evidence, 990);
    let all: Vec<CorpusEntry> = entries(&WRITTEN).into_iter().chain(entries(&HELD_OUT)).collect();
    check("evidence, all", &all, with_evidence, 990);
}

#[test]
fn the_corpus_has_two_hundred_of_each_kind_from_a_dozen_stacks() {
    let all: Vec<CorpusEntry> = entries(&WRITTEN).into_iter().chain(entries(&HELD_OUT)).collect();
    let count = |kind: bool| all.iter().filter(|e| e.is_out_of_memory == kind).count();
    let stacks: std::collections::BTreeSet<&str> =
        all.iter().filter(|e| e.is_out_of_memory).map(|e| e.stack.as_str()).collect();

    assert!(count(true) >= 200 && count(false) >= 200, "{} and {}", count(true), count(false));
    assert!(stacks.len() >= 12, "{stacks:?}");
    let mut texts: Vec<&str> = all.iter().map(|entry| entry.output.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), all.len(), "no entry is there twice");
}
