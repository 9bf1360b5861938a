//! Where an attempt's output goes: the patterns of [`tessera_model::spec::OutputPaths`].

use std::path::Path;

use tessera_model::NodeName;
use tessera_wire::frames::LaunchOrder;

/// Returns the absolute path that `pattern` names.
///
/// `%j` is the job's number, `%A` the array's (the job's, outside of arrays), `%a` the index
/// (0 outside of arrays), `%x` the name, `%u` the user, `%N` the node, `%r` the restarts, `%%` a
/// percent sign. Anything else after a percent sign is left as it is.
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
            Some('A') => name.push_str(&order.array.map_or(order.job, |a| a.array).to_string()),
            Some('a') => name.push_str(&order.array.map_or(0, |a| a.index).to_string()),
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

/// Keeps a name from leading into other folders.
fn flat(name: &str) -> String {
    name.replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::attempts::testing::order;
    use tessera_model::JobId;
    use tessera_wire::frames::ArrayPlace;

    fn expanded(pattern: &str) -> String {
        let order = LaunchOrder {
            array: Some(ArrayPlace {
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
