//! `--array`: the indexes of an array of jobs.

use std::collections::BTreeSet;
use std::str::FromStr;

use tessera_model::number::clamped;
use tessera_model::spec::ARRAY_TASKS_MAX;

/// The indexes that a user wrote, such as `0-31` or `1,3,7-15:2%4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// The indexes, in ascending order; at least one.
    pub indexes: Vec<u32>,
    /// How many tasks may run at a time, if that is limited.
    pub limit: Option<u32>,
    /// The first step that is written, as programs read it in `SLURM_ARRAY_TASK_STEP`; 1 without one.
    pub step: u32,
}

/// A text that is not a list of indexes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} can't be used: {why}; write indexes such as 0-31, 1,3,7-15:2 or 0-31%4")]
pub struct BadArray {
    text: String,
    why: String,
}

impl ArraySpec {
    /// Returns the first and the last index, if none between them is missing.
    pub fn range(&self) -> Option<(u32, u32)> {
        let (first, last) = (*self.indexes.first()?, *self.indexes.last()?);
        let tasks = u32::try_from(self.indexes.len()).ok()?;
        (last - first == tasks - 1).then_some((first, last))
    }
}

impl FromStr for ArraySpec {
    type Err = BadArray;

    fn from_str(text: &str) -> Result<Self, BadArray> {
        let bad = |why: &str| BadArray { text: text.to_owned(), why: why.to_owned() };
        let (list, limit) = match text.split_once('%') {
            Some((list, limit)) => (list, Some(limit)),
            None => (text, None),
        };
        let limit = limit.map(|limit| match number(limit) {
            Some(limit @ 1..) => Ok(limit),
            _ => Err(bad("after %, write how many tasks may run at a time, at least 1")),
        });
        // Slurm shows indexes in brackets, and takes them back so.
        let bare = list.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let mut indexes = BTreeSet::new();
        let mut first_step = None;
        for part in bare.unwrap_or(list).split(',') {
            let (range, step) = part.split_once(':').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let index = |text| number(text).ok_or_else(|| bad("an index is a whole number"));
            let (first, last) = (index(first)?, index(last)?);
            let step = number(step).filter(|step| *step > 0);
            let step = step.ok_or_else(|| bad("a step is a whole number from 1"))?;
            if part.contains(':') {
                first_step.get_or_insert(step);
            }
            if last < first {
                return Err(bad("the last index is smaller than the first"));
            }
            let tasks_max = clamped::<usize>(ARRAY_TASKS_MAX);
            let step = usize::try_from(step).map_err(|_| bad("the step is too large"))?;
            for index in (first..=last).step_by(step) {
                indexes.insert(index);
                if indexes.len() > tasks_max {
                    return Err(bad(&format!("an array has at most {ARRAY_TASKS_MAX} tasks")));
                }
            }
        }
        let indexes = indexes.into_iter().collect();
        Ok(Self { indexes, limit: limit.transpose()?, step: first_step.unwrap_or(1) })
    }
}

/// Reads a number without a sign.
fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_lists_steps_and_limits_are_read() {
        for (text, indexes, limit) in [
            ("0-3", vec![0, 1, 2, 3], None),
            ("7", vec![7], None),
            ("1,3,7-15:4%2", vec![1, 3, 7, 11, 15], Some(2)),
            ("5,1,5", vec![1, 5], None),
            ("0-30:30%1", vec![0, 30], Some(1)),
            ("[0-2]%2", vec![0, 1, 2], Some(2)),
            ("[4,6]", vec![4, 6], None),
        ] {
            let read: ArraySpec = text.parse().unwrap();
            assert_eq!((read.indexes, read.limit), (indexes, limit), "{text}");
        }
        assert_eq!("0-3".parse::<ArraySpec>().unwrap().range(), Some((0, 3)));
        assert_eq!("0,3".parse::<ArraySpec>().unwrap().range(), None);
        let step = |text: &str| text.parse::<ArraySpec>().unwrap().step;
        assert_eq!([step("1,3,7-15:2"), step("5-20:5,1"), step("0,10,20")], [2, 5, 1]);
    }

    #[test]
    fn options_that_an_array_cannot_have_are_named() {
        for (text, why) in [
            ("0-31%0", "at a time"),
            ("0-31%x", "at a time"),
            ("0-30:0", "step"),
            ("5-1", "smaller"),
            ("0-10000", "at most 10000"),
            ("0-4294967295", "at most 10000"),
            ("a-b", "whole number"),
            ("-1", "whole number"),
            ("", "whole number"),
            ("+1-2", "whole number"),
        ] {
            let refused = text.parse::<ArraySpec>().unwrap_err().to_string();

            assert!(refused.contains(why), "{text:?}: {refused}");
            assert!(refused.contains("0-31"), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn every_range_that_fits_reads_back(first in 0_u32..u32::MAX - 10_000, more in 0_u32..10_000) {
            let last = first + more;

            let read: ArraySpec = format!("{first}-{last}").parse().unwrap();

            prop_assert_eq!(read.range(), Some((first, last)));
        }
    }
}
