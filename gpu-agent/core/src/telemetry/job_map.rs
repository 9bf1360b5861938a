//! The files from which DCGM's exporter reads the jobs of a GPU or an instance.
//!
//! A GPU with MIG off has one file, named by its index (`0`). Each instance has one, named by the
//! indices of its GPU and of the driver's GPU instance (`0.3`). Each line has one job's number. A
//! device without jobs has no file: older exporters drop the figures of a device whose file is
//! empty. A GPU in MIG mode has no file: its figures don't belong to a single job.
//!
//! # Source
//!
//! dcgm-exporter, README, "How to include HPC jobs in metric labels", and
//! `internal/pkg/transformation/hpc.go`: names match `^\d+(\.\d+)?$`; figures with a MIG profile
//! are looked up under `GPU.INSTANCE`, others under `GPU`.

use std::collections::{BTreeMap, BTreeSet};

use tessera_model::JobId;

/// A place as DCGM names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DcgmEntity {
    /// The GPU's index on the node.
    pub gpu: u32,
    /// The driver's number of the GPU instance; `None` with MIG off.
    pub instance: Option<u32>,
}

impl DcgmEntity {
    /// Returns the name of the place's file.
    pub fn file_name(self) -> String {
        match self.instance {
            None => self.gpu.to_string(),
            Some(instance) => format!("{}.{instance}", self.gpu),
        }
    }

    /// Reads the name of a file; `None` for one that the exporter doesn't read.
    pub fn of_file(name: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|n: &u32| n.to_string() == text);
        match name.split_once('.') {
            None => Some(Self { gpu: number(name)?, instance: None }),
            Some((gpu, instance)) => {
                Some(Self { gpu: number(gpu)?, instance: Some(number(instance)?) })
            }
        }
    }
}

/// The jobs by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobMap {
    /// The GPUs whose jobs are known.
    pub known: BTreeSet<u32>,
    /// The jobs by place; no place without jobs.
    pub jobs: BTreeMap<DcgmEntity, BTreeSet<JobId>>,
}

impl JobMap {
    /// Returns the content of a place's file.
    fn content(jobs: &BTreeSet<JobId>) -> String {
        jobs.iter().map(|job| format!("{job}\n")).collect()
    }

    /// Returns the required files, by name.
    pub fn files(&self) -> BTreeMap<String, String> {
        self.jobs.iter().map(|(place, jobs)| (place.file_name(), Self::content(jobs))).collect()
    }
}

/// A change of the folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobFileChange {
    /// Write a file atomically.
    Write {
        /// Its id.
        name: String,
        /// What the file has to contain.
        content: String,
    },
    /// Remove a file.
    Remove {
        /// Its id.
        name: String,
    },
}

/// The content that we wrote into each file, or were about to write.
pub type OwnJobFiles = BTreeMap<String, BTreeSet<String>>;

/// Computes the changes of the folder. `stands` reads one of its files. Files that are not recorded
/// as ours are not touched, unless a job of ours is in their place. Files of GPUs that haven't been
/// seen (yet) are not touched either.
pub fn changes(
    map: &JobMap,
    ours: &OwnJobFiles,
    stands: impl Fn(&str) -> Option<String>,
) -> Vec<JobFileChange> {
    let desired = map.files();
    let stale = ours.iter().filter(|(name, _)| !desired.contains_key(*name));
    let stale = stale.filter(|(name, contents)| {
        let seen = DcgmEntity::of_file(name).is_none_or(|place| map.known.contains(&place.gpu));
        // A file that another program wrote since then is its own.
        seen && stands(name).is_some_and(|content| contents.contains(&content))
    });
    let removals = stale.map(|(name, _)| JobFileChange::Remove { name: name.clone() });
    let new = desired.iter().filter(|(name, content)| stands(name).as_ref() != Some(content));
    let writes = new.map(|(name, content)| JobFileChange::Write {
        name: name.clone(),
        content: content.clone(),
    });
    removals.chain(writes).collect()
}

/// Returns our files after the changes: files of GPUs that weren't seen stay.
pub fn ours_after(map: &JobMap, ours: &OwnJobFiles) -> OwnJobFiles {
    let unseen =
        |name: &str| DcgmEntity::of_file(name).is_some_and(|p| !map.known.contains(&p.gpu));
    let kept = ours.iter().filter(|(name, _)| unseen(name));
    let kept = kept.map(|(name, contents)| (name.clone(), contents.clone()));
    let desired = map.files().into_iter().map(|(name, content)| (name, BTreeSet::from([content])));
    kept.chain(desired).collect()
}

/// Returns the files that may be ours during the changes.
pub fn ours_meanwhile(map: &JobMap, ours: &OwnJobFiles) -> OwnJobFiles {
    let mut both = ours.clone();
    for (name, content) in map.files() {
        both.entry(name).or_default().insert(content);
    }
    both
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(gpu: u32, instance: Option<u32>) -> DcgmEntity {
        DcgmEntity { gpu, instance }
    }

    fn map(known: &[u32], jobs: &[(DcgmEntity, u64)]) -> JobMap {
        let mut map = JobMap { known: known.iter().copied().collect(), ..JobMap::default() };
        for (place, job) in jobs {
            map.jobs.entry(*place).or_default().insert(JobId::from_number(*job));
        }
        map
    }

    /// A folder, and the agent's record of it.
    #[derive(Clone, Debug, Default)]
    struct JobFolder {
        files: BTreeMap<String, String>,
        ours: OwnJobFiles,
    }

    impl JobFolder {
        /// Brings the folder up to date; returns false if the agent is killed after `steps`.
        fn bring(&mut self, map: &JobMap, steps: usize) -> bool {
            let changes = changes(map, &self.ours, |name| self.files.get(name).cloned());
            self.ours = ours_meanwhile(map, &self.ours);
            let all = changes.len();
            for change in changes.into_iter().take(steps) {
                match change {
                    JobFileChange::Write { name, content } => {
                        drop(self.files.insert(name, content));
                    }
                    JobFileChange::Remove { name } => drop(self.files.remove(&name)),
                }
            }
            if steps < all {
                return false;
            }
            self.ours = ours_after(map, &self.ours);
            true
        }
    }

    #[test]
    fn files_are_named_as_the_exporter_reads_them() {
        let map =
            map(&[0, 3], &[(place(0, None), 7), (place(3, Some(10)), 9), (place(3, Some(10)), 8)]);

        assert_eq!(
            map.files(),
            [("0".to_owned(), "7\n".to_owned()), ("3.10".to_owned(), "8\n9\n".to_owned())].into()
        );
        assert_eq!(DcgmEntity::of_file("3.10"), Some(place(3, Some(10))));
        for other in ["", "a", "1.", ".1", "01", "1.2.3", "-1", "+1"] {
            assert_eq!(DcgmEntity::of_file(other), None, "{other:?}");
        }
    }

    #[test]
    fn files_of_other_programs_are_not_touched() {
        let mut folder = JobFolder::default();
        folder.files.insert("5".into(), "slurm\n".into());
        assert!(folder.bring(&map(&[0, 5], &[(place(0, Some(1)), 7)]), usize::MAX));

        // Another program overwrites the file.
        folder.files.insert("0.1".into(), "theirs\n".into());
        assert!(folder.bring(&map(&[0, 5], &[]), usize::MAX));

        assert_eq!(folder.files["5"], "slurm\n");
        assert_eq!(folder.files["0.1"], "theirs\n");
    }

    #[test]
    fn files_of_a_gpu_that_was_not_seen_yet_stay() {
        let mut folder = JobFolder::default();
        assert!(folder.bring(&map(&[0], &[(place(0, Some(1)), 7)]), usize::MAX));

        assert!(folder.bring(&map(&[], &[]), usize::MAX));
        assert_eq!(folder.files.len(), 1);
        assert!(folder.bring(&map(&[0], &[]), usize::MAX));
        assert!(folder.files.is_empty());
    }

    proptest! {
        /// Launches, ends and repartitions in any order, and an agent that may be killed in the
        /// middle of each change: the next agent corrects the folder and leaves no stale files.
        #[test]
        fn the_folder_is_correct_after_every_change_and_after_a_crash_in_any(
            steps in prop::collection::vec(
                (prop::collection::btree_map((0..2_u32, prop::option::of(0..4_u32)), 1..9_u64, 0..5), 0..6_usize),
                1..20,
            ),
        ) {
            let mut folder = JobFolder::default();
            for (jobs, crash_after) in steps {
                let jobs: Vec<_> =
                    jobs.into_iter().map(|((g, i), job)| (place(g, i), job)).collect();
                let desired = map(&[0, 1], &jobs);
                if !folder.bring(&desired, crash_after) {
                    prop_assert!(folder.bring(&desired, usize::MAX));
                }
                prop_assert_eq!(&folder.files, &desired.files());
            }
        }
    }
}
