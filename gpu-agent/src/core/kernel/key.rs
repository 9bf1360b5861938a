//! What two attempts must share to use one profile: the user's word, or the program and its
//! parameters (FIKIT §3.1).

use tessera_kernel_queue::TaskKey;
use tessera_kernel_queue::limits::TASK_KEY_BYTES_MAX;
use tessera_model::spec::Program;

/// Returns an attempt's task key. What is too long is told apart by a checksum of the whole.
///
/// Keys of different users never meet: what one user calls `train` is not another's.
pub fn task_key(user: &str, named: Option<&str>, program: &Program) -> TaskKey {
    let text = match (named, program) {
        (Some(name), _) => name.to_owned(),
        (None, Program::Command(words)) => words.join(" "),
        (None, Program::Script(text)) => format!("script {:08x} {}", checksum(text), first(text)),
    };
    let text = format!("{user}: {text}");
    TaskKey::new(shortened(&text)).unwrap_or_else(|_| {
        unreachable!("1 to {TASK_KEY_BYTES_MAX} bytes: it begins with a colon and was shortened")
    })
}

/// Returns the first line of a script that does something, for people.
fn first(script: &str) -> &str {
    let works = |line: &&str| !line.is_empty() && !line.starts_with('#');
    script.lines().map(str::trim).find(works).unwrap_or_default()
}

fn checksum(text: &str) -> u32 {
    crc32fast::hash(text.as_bytes())
}

/// Longest key that is kept as it is: it goes into frames and rows.
const KEPT_BYTES_MAX: usize = 512;

fn shortened(text: &str) -> String {
    const { assert!(KEPT_BYTES_MAX < TASK_KEY_BYTES_MAX) };
    if text.len() <= KEPT_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = KEPT_BYTES_MAX - 10;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} {:08x}", &text[..end], checksum(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(named: Option<&str>, program: &Program) -> String {
        task_key("ada", named, program).to_string()
    }

    #[test]
    fn a_key_is_the_users_word_or_the_program_with_its_parameters() {
        let command = Program::Command(vec!["train".into(), "--steps".into(), "9".into()]);

        assert_eq!(of(Some("mine"), &command), "ada: mine");
        assert_eq!(of(None, &command), "ada: train --steps 9");
    }

    #[test]
    fn scripts_that_differ_anywhere_have_different_keys() {
        let one = Program::Script("#!/bin/sh\npython a.py\nexit 0".into());
        let two = Program::Script("#!/bin/sh\npython a.py\nexit 1".into());

        assert_ne!(of(None, &one), of(None, &two));
        assert!(of(None, &one).ends_with("python a.py"), "{}", of(None, &one));
    }

    #[test]
    fn a_long_command_line_is_shortened_and_still_its_own() {
        let long = |end: &str| Program::Command(vec!["é".repeat(400), end.into()]);

        let (one, two) = (of(None, &long("1")), of(None, &long("2")));

        assert!(one.len() <= KEPT_BYTES_MAX && one != two);
    }
}
