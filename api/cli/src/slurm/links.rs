//! `tessera slurm-links`: makes this program callable by the names of Slurm's commands.

use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use clap::Args;

use super::SlurmCommand;
use crate::failure::CommandFailure;
use crate::session::write_out;

/// Makes links named sbatch, squeue, scancel and so on to this program. With their folder first in PATH,
/// scripts and workflow tools written for Slurm use Tessera.
#[derive(Args)]
pub struct SlurmLinks {
    /// The folder; it is created if it does not exist
    folder: PathBuf,
    /// Replace files with these names that are not links to this program
    #[arg(long)]
    force: bool,
}

impl SlurmLinks {
    /// Makes the links.
    pub fn run(&self) -> Result<u8, CommandFailure> {
        let program = std::env::current_exe()?;
        std::fs::create_dir_all(&self.folder)?;
        for command in SlurmCommand::ALL {
            let link = self.folder.join(command.name());
            match std::fs::read_link(&link) {
                Ok(to) if to == program => continue,
                Ok(to) if self.force || to.file_name() == program.file_name() => {
                    std::fs::remove_file(&link)?;
                }
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
                Err(_) if self.force => std::fs::remove_file(&link)?,
                Ok(_) | Err(_) => {
                    return Err(CommandFailure::refused(format!(
                        "{} exists and is not a link to tessera: choose another folder, or give \
                         --force to replace it",
                        link.display()
                    )));
                }
            }
            symlink(&program, &link)?;
        }
        write_out(&format!(
            "made {} links to {} in {}\nput the folder first: export PATH={}:$PATH\n",
            SlurmCommand::ALL.len(),
            program.display(),
            self.folder.display(),
            self.folder.display(),
        ))?;
        Ok(0)
    }
}
