//! Where an attempt's output goes: the patterns of [`tessera_model::spec::OutputPaths`].

use std::path::Path;

use tessera_frames::cluster::LaunchOrder;
use tessera_model::{JobId, NodeName};

/// Returns the absolute path that `pattern` names.
///
/// `%j` is the job's number, `%A` the array's or gang's (the job's, outside of both), `%a` the
/// index or rank (0 outside of both). `%x` is the name, `%u` the user, `%N` the node, `%r` the
/// restarts, `%%` a percent sign. Anything else after a percent sign is left as it is.
pub fn expand(pattern: &str, order: &LaunchOrder, node: &NodeName, base: &Path) -> String {
    let mut name = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            name.push(c);
            continue;
        }
        match rest.next() {
            Some('j') => name.push_str(&order.job.to_string()),
            Some('A') => name.push_str(&whole(order).to_string()),
            Some('a') => name.push_str(&index(order).to_string()),
            Some('x') => name.push_str(&flat(&order.name)),
            Some('u') => name.push_str(&flat(&order.user)),
            Some('N') => name.push_str(node.as_str()),
            Some('r') => name.push_str(&order.number.saturating_sub(1).to_string()),
            Some('%') => name.push('%'),
            Some(other) => name.extend(['%', other]),
            None => name.push('%'),
        }
    }
    base.join(name).display().to_string()
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

/// Keeps a name from leading into other folders.
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
    }
}
