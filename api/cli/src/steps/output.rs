//! Where the output of a step's processes goes: files, or this process's own, with labels if requested.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use super::environment::StepFacts;
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;

/// One process, as names of files state it.
#[derive(Clone, Copy, Debug)]
pub struct FilePlace<'p> {
    pub rank: usize,
    /// Its node's number in the step.
    pub node: usize,
    /// Its node's name.
    pub name: &'p str,
}

/// Fills in the pattern of a file's name for one process of a step.
pub fn expand(pattern: &str, allocation: &Allocation, step: u64, place: FilePlace<'_>) -> String {
    let get = |name: &str| allocation.environment.get(name).cloned();
    let job = || allocation.job.clone();
    let mut name = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (width, after) = after.split_at(digits);
        let width = width.parse::<usize>().unwrap_or(0).min(10);
        let letter = after.chars().next();
        let number = match letter {
            Some('j') => Some(job()),
            Some('J') => Some(format!("{}.{step}", allocation.job)),
            Some('A') => get("SLURM_ARRAY_JOB_ID").or_else(|| Some(job())),
            Some('a') => get("SLURM_ARRAY_TASK_ID").or_else(|| Some("0".to_owned())),
            Some('s') => Some(step.to_string()),
            Some('t') => Some(place.rank.to_string()),
            Some('n') => Some(place.node.to_string()),
            Some('N') => Some(place.name.to_owned()),
            Some('x') => get("SLURM_JOB_NAME"),
            Some('u') => get("SLURM_JOB_USER"),
            Some('%') => Some("%".to_owned()),
            _ => None,
        };
        match (number, letter) {
            (Some(value), Some(letter)) => {
                name.push_str(&format!("{value:0>width$}"));
                rest = &after[letter.len_utf8()..];
            }
            _ => {
                name.push('%');
                rest = after;
            }
        }
    }
    name.push_str(rest);
    name
}

/// Copies lines to standard output or error, each after the number of its process.
pub async fn copy_labelled(from: impl AsyncRead + Unpin, rank: usize, is_error: bool) {
    let mut lines = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        let labelled = [format!("{rank}: ").as_bytes(), &line].concat();
        // A reader that is gone needs no output.
        let _ = match is_error {
            true => std::io::stderr().write_all(&labelled),
            false => std::io::stdout().write_all(&labelled),
        };
    }
}

/// Opens the file of an output. Processes with one file share it, so that none empties what another wrote.
///
/// # Errors
///
/// [`CommandFailure`] names the file.
pub fn open_file(name: &str) -> Result<File, CommandFailure> {
    let opened = OpenOptions::new().append(true).create(true).open(name);
    opened.map_err(|error| {
        CommandFailure::refused(format!("the output file {name} can't be written: {error}"))
    })
}

/// Maximum length of an unfinished line that is held back.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// Where the output of one process goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// This process's own.
    Own,
    /// This file.
    File(String),
    Nowhere,
}

/// The outputs of all processes of a step over several nodes. Lines of different processes are not mixed.
#[derive(Debug)]
pub struct StepOutput {
    label: bool,
    files: BTreeMap<String, File>,
    targets: BTreeMap<(usize, bool), Target>,
    /// Beginnings of lines.
    begun: BTreeMap<(usize, bool), Vec<u8>>,
}

impl StepOutput {
    /// Opens the files of all processes.
    ///
    /// # Errors
    ///
    /// One can't be written.
    pub fn open(
        plan: &StepPlan,
        allocation: &Allocation,
        facts: &StepFacts,
    ) -> Result<Self, CommandFailure> {
        let (mut files, mut targets) = (BTreeMap::new(), BTreeMap::new());
        let patterns =
            [(false, plan.output.as_ref()), (true, plan.error.as_ref().or(plan.output.as_ref()))];
        for (number, node) in facts.layout.nodes.iter().enumerate() {
            for rank in &node.ranks {
                for (is_error, pattern) in patterns {
                    let place = FilePlace { rank: *rank, node: number, name: &node.name };
                    let target = match pattern {
                        None => Target::Own,
                        Some(pattern) if pattern == "none" => Target::Nowhere,
                        Some(pattern) => {
                            let name = expand(pattern, allocation, facts.number, place);
                            if let Entry::Vacant(free) = files.entry(name.clone()) {
                                free.insert(open_file(&name)?);
                            }
                            Target::File(name)
                        }
                    };
                    targets.insert((*rank, is_error), target);
                }
            }
        }
        Ok(Self { label: plan.label, files, targets, begun: BTreeMap::new() })
    }

    /// Takes a piece of a process's output.
    pub fn write(&mut self, from: (usize, bool), bytes: &[u8]) {
        if self.targets.get(&from).is_some_and(|target| *target != Target::Own) {
            return self.put(from, bytes);
        }
        let mut begun = self.begun.remove(&from).unwrap_or_default();
        begun.extend_from_slice(bytes);
        // Progress bars end their lines with a carriage return.
        let is_end = |byte: &u8| *byte == b'\n' || (*byte == b'\r' && !self.label);
        let whole = begun.iter().rposition(is_end).map_or(0, |last| last + 1);
        let whole = if begun.len() > LINE_BYTES_MAX { begun.len() } else { whole };
        let rest = begun.split_off(whole);
        self.put(from, &begun);
        if !rest.is_empty() {
            self.begun.insert(from, rest);
        }
    }

    /// Writes the last lines of a process that has ended.
    pub fn finish(&mut self, rank: usize) {
        for from in [(rank, false), (rank, true)] {
            if let Some(rest) = self.begun.remove(&from) {
                self.put(from, &rest);
            }
        }
    }

    /// Writes the last lines of all processes.
    pub fn finish_all(&mut self) {
        let ranks: Vec<usize> = self.begun.keys().map(|(rank, _)| *rank).collect();
        ranks.into_iter().for_each(|rank| self.finish(rank));
    }

    /// Writes whole lines, after their labels.
    fn put(&mut self, from: (usize, bool), bytes: &[u8]) {
        let (rank, is_error) = from;
        let labelled = match self.label {
            true => labelled(rank, bytes),
            false => bytes.to_vec(),
        };
        // A reader that has ended needs no output, and a full disk does not stop the processes.
        let _ = match self.targets.get(&from) {
            Some(Target::File(name)) => {
                self.files.get_mut(name).map_or(Ok(()), |file| file.write_all(bytes))
            }
            Some(Target::Nowhere) => Ok(()),
            Some(Target::Own) | None if is_error => std::io::stderr().write_all(&labelled),
            Some(Target::Own) | None => {
                let mut out = std::io::stdout().lock();
                out.write_all(&labelled).and_then(|()| out.flush())
            }
        };
    }
}

/// Puts the number of a process in front of each line.
fn labelled(rank: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes.len() + 8);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        all.extend_from_slice(format!("{rank}: ").as_bytes());
        all.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_label_also_the_last_one() {
        assert_eq!(labelled(3, b"one\ntwo"), b"3: one\n3: two\n");
        assert_eq!(labelled(0, b""), b"");
    }
}
