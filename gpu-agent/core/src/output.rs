//! The paths of an attempt's output, from the patterns of [`tessera_model::spec::OutputPaths`].

use std::path::Path;

use tessera_frames::cluster::LaunchOrder;
use tessera_model::{JobId, NodeName};

/// Maximum number of digits to which a number is padded, as in Slurm.
const PADDING_MAX: usize = 10;

/// Returns the absolute path that `pattern` names.
///
/// `%j` and `%J` are the job's number, `%A` the array's or gang's (the job's, outside of both), `%a` the
/// index or rank (0 outside of both). `%x` is the name, `%u` the user, `%N` the node, `%r` the restarts, `%%`
/// a percent sign. `%n` and `%t` are the numbers of node and task, 0, and `%s` is the step,
/// `batch`. Digits before a number's letter pad it with zeros: `%4a`. Anything else after a percent
/// sign is left as it is.
pub fn expand(pattern: &str, order: &LaunchOrder, node: &NodeName, base: &Path) -> String {
    let mut name = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (width, after) = after.split_at(digits);
        let letter = after.chars().next();
        let value = letter.and_then(|letter| value_of(letter, width, order, node));
        match (value, letter) {
            (Some(value), Some(letter)) => {
                name.push_str(&value);
                rest = &after[letter.len_utf8()..];
            }
            _ => {
                name.push('%');
                name.push_str(width);
                rest = after;
            }
        }
    }
    name.push_str(rest);
    base.join(name).display().to_string()
}

/// Returns the value of a letter in a pattern; `None` if the letter has no meaning.
fn value_of(letter: char, width: &str, order: &LaunchOrder, node: &NodeName) -> Option<String> {
    let number = match letter {
        'j' | 'J' => order.job.number(),
        'A' => whole(order).number(),
        'a' => u64::from(index(order)),
        'r' => u64::from(order.number.saturating_sub(1)),
        'n' | 't' => 0,
        _ if !width.is_empty() => return None,
        'x' => return Some(flat(&order.name)),
        'u' => return Some(flat(&order.user)),
        'N' => return Some(node.to_string()),
        's' => return Some("batch".to_owned()),
        '%' => return Some("%".to_owned()),
        _ => return None,
    };
    let width = width.parse::<usize>().unwrap_or(0).min(PADDING_MAX);
    Some(format!("{number:0width$}"))
}

/// Returns the array or the gang that a job belongs to, or the job.
fn whole(order: &LaunchOrder) -> JobId {
    let gang = order.gang.as_ref().map(|gang| gang.gang);
    order.array.map(|array| array.array).or(gang).unwrap_or(order.job)
}

fn index(order: &LaunchOrder) -> u32 {
    let rank = order.gang.as_ref().map(|gang| gang.rank);
    order.array.map(|array| array.index).or(rank).unwrap_or(0)
}

/// Prevents a name from leading into other folders.
fn flat(name: &str) -> String {
    name.replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::testing::order;
    use tessera_frames::cluster::ArrayPosition;

    fn expanded(pattern: &str) -> String {
        let order = LaunchOrder {
            array: Some(ArrayPosition {
                array: JobId::from_number(40),
                index: 7,
                count: 9,
                min: 0,
                max: 8,
            }),
            name: "a/b".into(),
            user: "ada".into(),
            number: 3,
            ..order(1, 42)
        };
        expand(pattern, &order, &"n1".parse().unwrap(), Path::new("/data"))
    }

    #[test]
    fn patterns_are_filled_in_and_relative_paths_start_at_the_working_folder() {
        assert_eq!(expanded("out-%j-%A-%a-%u-%N-%r%%"), "/data/out-42-40-7-ada-n1-2%");
        assert_eq!(expanded("/abs/%x.log"), "/abs/a_b.log");
        assert_eq!(expanded("%q%"), "/data/%q%");
        assert_eq!(expanded("%4a-%J-%5j-%n-%s-%t-%4x-%"), "/data/0007-42-00042-0-batch-0-%4x-%");
    }
}
