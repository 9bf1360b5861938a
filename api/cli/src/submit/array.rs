//! `--array`: the indexes of an array of jobs.

use std::str::FromStr;

use tessera_model::spec::ARRAY_TASKS_MAX;

use tessera_api_types::ArrayRange;

/// The indexes that a user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySpec(pub ArrayRange);

/// A text that is not a range of indexes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} can't be used: {why}; write one range such as 0-31")]
pub struct BadArray {
    text: String,
    why: String,
}

impl FromStr for ArraySpec {
    type Err = BadArray;

    fn from_str(text: &str) -> Result<Self, BadArray> {
        let bad = |why: &str| BadArray { text: text.to_owned(), why: why.to_owned() };
        if text.contains('%') {
            return Err(bad("a limit of tasks at a time (%) is not supported"));
        }
        if text.contains(':') {
            return Err(bad("a step (:) is not supported"));
        }
        if text.contains(',') {
            return Err(bad("a list is not supported"));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if !text.starts_with('+') => Ok(number),
            Ok(_) | Err(_) => Err(bad("an index is a whole number")),
        };
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(bad("the last index is smaller than the first"));
        }
        if last - first >= ARRAY_TASKS_MAX {
            return Err(bad(&format!("an array has at most {ARRAY_TASKS_MAX} tasks")));
        }
        Ok(Self(ArrayRange { first, last }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_and_a_single_index_are_read() {
        assert_eq!("0-31".parse(), Ok(ArraySpec(ArrayRange { first: 0, last: 31 })));
        assert_eq!("7".parse(), Ok(ArraySpec(ArrayRange { first: 7, last: 7 })));
    }

    #[test]
    fn what_an_array_cannot_do_is_named() {
        for (text, why) in [
            ("0-31%4", "at a time"),
            ("0-30:2", "step"),
            ("1,3,5", "list"),
            ("5-1", "smaller"),
            ("0-10000", "at most 10000"),
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
            let range = ArrayRange { first, last: first + more };

            let read = format!("{}-{}", range.first, range.last).parse();

            prop_assert_eq!(read, Ok(ArraySpec(range)));
        }
    }
}
