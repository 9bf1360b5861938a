//! `tessera completions` and `tessera manual`: what a package installs in addition to the programs.

use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::CommandFailure;
use crate::session::write_out;

#[derive(Args)]
pub struct Completions {
    /// Name of the shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints the completions of `command`.
    pub fn run(&self, mut command: Command) -> Result<u8, CommandFailure> {
        let mut text = Vec::new();
        let name = command.get_name().to_owned();
        clap_complete::generate(self.shell, &mut command, name, &mut text);
        write_out(&String::from_utf8_lossy(&text))?;
        Ok(0)
    }
}

#[derive(Args)]
pub struct Manual {
    /// The folder
    out: PathBuf,
}

impl Manual {
    /// Writes one manual page for `command` and one for each verb.
    pub fn run(&self, command: Command) -> Result<u8, CommandFailure> {
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(&self.out)?;
            clap_mangen::generate_to(command, &self.out)
        };
        write()?;
        Ok(0)
    }
}
