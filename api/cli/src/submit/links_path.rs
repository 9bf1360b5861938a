//! Scripts that export nothing call `srun`, too.
//!
//! Under Slurm, a job without exported variables gets its user's login environment, where Slurm's commands are found. Here it
//! gets the node's own search path. So the folder of the links is added to that, if the submitter's path has one.

use std::collections::BTreeMap;
use std::path::Path;

/// The search path that agents give to jobs without one (`NodeEnvironment` of the agent).
const OF_NODES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Gives a job without a search path one that has the folder of the links to this program.
pub fn keep_links(job: &mut BTreeMap<String, String>, submitter: &BTreeMap<String, String>) {
    add_folder(job, submitter, is_this_program);
}

fn add_folder(
    job: &mut BTreeMap<String, String>,
    submitter: &BTreeMap<String, String>,
    is_link: impl Fn(&Path) -> bool,
) {
    let Some(path) = submitter.get("PATH").filter(|_| !job.contains_key("PATH")) else { return };
    let is_absolute = |folder: &&str| folder.starts_with('/');
    let found =
        path.split(':').filter(is_absolute).find(|own| is_link(&Path::new(own).join("srun")));
    let unknown = found.filter(|folder| OF_NODES.split(':').all(|usual| usual != *folder));
    if let Some(folder) = unknown {
        job.insert("PATH".to_owned(), format!("{OF_NODES}:{folder}"));
    }
}

fn is_this_program(link: &Path) -> bool {
    let own = std::env::current_exe().and_then(|program| program.canonicalize());
    link.canonicalize().is_ok_and(|program| own.is_ok_and(|own| own == program))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(job: &[(&str, &str)], submitter: &str) -> Option<String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut job: BTreeMap<_, _> = job.iter().map(owned).collect();
        let submitter = [("PATH".to_owned(), submitter.to_owned())].into();
        add_folder(&mut job, &submitter, |link| {
            ["/opt/links/srun", "/usr/bin/srun"].contains(&link.to_str().unwrap())
        });
        job.remove("PATH")
    }

    #[test]
    fn a_job_that_gets_no_search_path_finds_the_links() {
        let path = path_of(&[], "bin:/opt/conda/bin:/opt/links:/usr/bin").unwrap();
        assert_eq!(path, format!("{OF_NODES}:/opt/links"));
        assert_eq!(path_of(&[], "/usr/bin:/opt/links"), None, "they are on every path");
        assert_eq!(path_of(&[], "/opt/conda/bin:/bin"), None, "there are no links");
    }

    #[test]
    fn a_search_path_that_a_user_chose_stays() {
        let path = path_of(&[("PATH", "/mine")], "/opt/links");
        assert_eq!(path.as_deref(), Some("/mine"));
    }
}
