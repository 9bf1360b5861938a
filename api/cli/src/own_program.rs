//! Processes that begin as this very program.
//!
//! A copy of the program that is called `srun` is `srun`, as a link is: an image that was built with `COPY` has copies
//! where there were links. So the first argument of a process that it starts as itself excludes Slurm's commands.
//! Otherwise `srun step-part` would start a step of that name, which would again.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

/// The program's own name.
const NAME: &str = "tessera";

/// The argument.
const PLAINLY: &str = "--plainly";

/// Returns the command line of a verb of this program.
///
/// # Errors
///
/// The program's file can't be found.
pub fn words(verb: &str) -> io::Result<Vec<String>> {
    let program = std::env::current_exe()?;
    Ok(words_of(&program, verb))
}

fn words_of(program: &Path, verb: &str) -> Vec<String> {
    let is_renamed = program.file_name().is_none_or(|name| name != NAME);
    let plainly = is_renamed.then(|| PLAINLY.to_owned());
    let program = program.to_string_lossy().into_owned();
    [program].into_iter().chain(plainly).chain([verb.to_owned()]).collect()
}

/// Returns a process of a verb of this program.
///
/// # Errors
///
/// The program's file can't be found.
pub fn command(verb: &str) -> io::Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(words_of(&program, verb).into_iter().skip(1));
    Ok(command)
}

/// Removes the argument from a command line. Returns whether it was there.
pub fn is_plain(arguments: &mut Vec<OsString>) -> bool {
    let plain = arguments.get(1).is_some_and(|second| second == PLAINLY);
    if plain {
        arguments.remove(1);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_another_name_starts_itself_for_a_verb_of_tessera() {
        let plain = words_of(Path::new("/usr/bin/tessera"), "step-part");
        assert_eq!(plain, ["/usr/bin/tessera", "step-part"]);

        let named = words_of(Path::new("/usr/bin/srun"), "step-part");
        let mut arguments: Vec<OsString> = named.into_iter().map(OsString::from).collect();
        assert!(is_plain(&mut arguments));
        assert_eq!(arguments, ["/usr/bin/srun", "step-part"]);
        assert!(!is_plain(&mut arguments));
    }
}
