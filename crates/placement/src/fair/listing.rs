//! Which of many waiting jobs are looked at: with fair share, those of each user.
//!
//! A round looks at a limited number of jobs. If these were simply the head of the queue, a user with thousands of
//! jobs would keep those of all later users from being considered.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::view::QueuedJob;

/// Returns how many jobs are taken from each of several lines of these lengths, at most `most` together. Each line gets
/// an equal part, and what short lines leave goes to the longer ones. If there are more lines than that, the first get one
/// each.
pub fn parts_of_lines(lengths: &[usize], most: usize) -> Vec<usize> {
    let mut parts = vec![0; lengths.len()];
    let mut by_length: Vec<usize> = (0..lengths.len().min(most)).collect();
    by_length.sort_by_key(|line| lengths[*line]);
    let mut left = most;
    for (at, line) in by_length.iter().enumerate() {
        let part = left.div_ceil(by_length.len() - at).min(lengths[*line]);
        parts[*line] = part;
        left -= part;
    }
    parts
}

/// Returns which jobs of a queue are taken, by their places, if each user gets a part of `most`. The jobs of one user
/// keep their order. If there are more users than that, those with the least usage are preferred. `usage` returns it
/// for a job of the user.
pub(crate) fn first_of_each_user(
    queue: &[&QueuedJob],
    most: usize,
    usage: &dyn Fn(&QueuedJob) -> u64,
) -> Vec<bool> {
    let mut lines: BTreeMap<&Arc<str>, Vec<usize>> = BTreeMap::new();
    for (place, job) in queue.iter().enumerate() {
        lines.entry(&job.user).or_default().push(place);
    }
    let mut lines: Vec<Vec<usize>> = lines.into_values().collect();
    if lines.len() > most {
        lines.sort_by_cached_key(|line| usage(queue[line[0]]));
    }
    let lengths: Vec<usize> = lines.iter().map(Vec::len).collect();
    let mut taken = vec![false; queue.len()];
    for (line, part) in lines.iter().zip(parts_of_lines(&lengths, most)) {
        line[..part].iter().for_each(|place| taken[*place] = true);
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_get_equal_parts_as_far_as_they_have_jobs(
            lengths in prop::collection::vec(1_usize..60, 1..12),
            most in 0_usize..200,
        ) {
            let parts = parts_of_lines(&lengths, most);

            let all: usize = lengths.iter().sum();
            prop_assert_eq!(parts.iter().sum::<usize>(), most.min(all));
            let largest = parts.iter().copied().max().unwrap_or(0);
            for (part, length) in parts.iter().zip(&lengths).take(most) {
                prop_assert!(part <= length);
                prop_assert!(part == length || part + 1 >= largest, "{:?}: {:?}", lengths, parts);
            }
        }
    }

    #[test]
    fn of_more_lines_than_are_taken_the_first_get_one_each() {
        assert_eq!(parts_of_lines(&[5, 1, 9, 2], 2), [1, 1, 0, 0]);
    }
}
