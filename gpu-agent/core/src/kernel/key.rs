//! The task key of an attempt: the user's name for it, or the program with its parameters (FIKIT
//! §3.1). Attempts with the same key share a profile.

use tessera_kernel_queue::TaskKey;
use tessera_kernel_queue::limits::TASK_KEY_BYTES_MAX;
use tessera_model::spec::JobProgram;
use tessera_model::task::KEY_BYTES_MAX;

// Keys that the model shortens fit into the queue's limit.
const _: () = assert!(KEY_BYTES_MAX <= TASK_KEY_BYTES_MAX);

/// Returns an attempt's task key.
///
/// Keys of different users differ: each user has their own `train`.
pub fn task_key(user: &str, named: Option<&str>, program: &JobProgram) -> TaskKey {
    TaskKey::new(tessera_model::task::task_key(user, named, program)).unwrap_or_else(|_| {
        unreachable!("1 to {TASK_KEY_BYTES_MAX} bytes: it has a colon and was shortened")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(named: Option<&str>, program: &JobProgram) -> String {
        task_key("ada", named, program).to_string()
    }

    #[test]
    fn a_key_is_the_users_name_or_the_program_with_its_parameters() {
        let command = JobProgram::Command(vec!["train".into(), "--steps".into(), "9".into()]);

        assert_eq!(of(Some("mine"), &command), "ada: mine");
        assert_eq!(of(None, &command), "ada: train --steps 9");
    }

    #[test]
    fn scripts_that_differ_anywhere_have_different_keys() {
        let one = JobProgram::Script("#!/bin/sh\npython a.py\nexit 0".into());
        let two = JobProgram::Script("#!/bin/sh\npython a.py\nexit 1".into());

        assert_ne!(of(None, &one), of(None, &two));
        assert!(of(None, &one).ends_with("python a.py"), "{}", of(None, &one));
    }

    #[test]
    fn a_long_command_line_is_shortened_and_still_its_own() {
        let long = |end: &str| JobProgram::Command(vec!["é".repeat(400), end.into()]);

        let (one, two) = (of(None, &long("1")), of(None, &long("2")));

        assert!(one.len() <= KEY_BYTES_MAX && one != two);
    }
}
