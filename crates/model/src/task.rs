//! The key that two attempts must share so that knowledge about one applies to the other: the
//! user's name for the task, or the program with its parameters.
//!
//! # Source
//!
//! FIKIT §3.1 (task keys).

use crate::spec::JobProgram;

/// The longest key that is kept unchanged: it is part of frames and rows.
pub const KEY_BYTES_MAX: usize = 512;

/// Returns a task's key: never empty, at most [`KEY_BYTES_MAX`] bytes. Longer keys end with a
/// checksum of the whole.
///
/// Keys of different users never meet: what one user calls `train` is not another's.
pub fn task_key(user: &str, named: Option<&str>, program: &JobProgram) -> String {
    let text = match (named, program) {
        (Some(name), _) => name.to_owned(),
        (None, JobProgram::Command(words)) => words.join(" "),
        (None, JobProgram::Script(text)) => {
            format!("script {:08x} {}", checksum(text), first(text))
        }
    };
    shortened(&format!("{user}: {text}"))
}

/// Returns the first line of a script that does something, for people.
fn first(script: &str) -> &str {
    let works = |line: &&str| !line.is_empty() && !line.starts_with('#');
    script.lines().map(str::trim).find(works).unwrap_or_default()
}

/// CRC-32 as in zlib: keys outlive builds, so it must never change.
fn checksum(text: &str) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !text.bytes().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(byte), bit))
}

fn shortened(text: &str) -> String {
    if text.len() <= KEY_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = KEY_BYTES_MAX - 10;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} {:08x}", &text[..end], checksum(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(checksum("123456789"), 0xCBF4_3926);
        assert_eq!(checksum(""), 0);
    }

    #[test]
    fn the_same_program_of_two_users_is_two_tasks() {
        let program = JobProgram::Command(vec!["python3".into(), "train.py".into()]);

        assert_eq!(task_key("ada", None, &program), "ada: python3 train.py");
        assert_ne!(task_key("ada", None, &program), task_key("bob", None, &program));
        assert_eq!(task_key("ada", Some("vit"), &program), "ada: vit");
    }

    #[test]
    fn long_keys_that_begin_alike_stay_apart() {
        let long = |end: &str| JobProgram::Command(vec!["ä".repeat(400), end.to_owned()]);

        let (a, b) = (task_key("ada", None, &long("a")), task_key("ada", None, &long("b")));

        assert_ne!(a, b);
        assert!(a.len() <= KEY_BYTES_MAX && b.len() <= KEY_BYTES_MAX);
    }
}
