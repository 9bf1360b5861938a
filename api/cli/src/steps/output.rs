//! Where the output of a step's processes goes: files, or this process's own, with labels if requested.

use std::io::Write as _;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

use super::Allocation;

/// Fills in the pattern of a file's name for one process of a step.
pub fn expand(pattern: &str, allocation: &Allocation, step: u64, rank: usize) -> String {
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
            Some('t') => Some(rank.to_string()),
            Some('n') => Some("0".to_owned()),
            Some('N') => Some(allocation.node.clone()),
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

/// Copies lines to standard output or error, each behind the number of its process.
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
