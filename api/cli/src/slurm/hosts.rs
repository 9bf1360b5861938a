//! Lists of hosts: `g[1-3,07],a2`.

use std::collections::BTreeMap;

/// Maximum number of hosts in one list; more indicates a mistake.
const HOSTS_MAX: usize = 65_536;

/// A text that is not a list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid hostlist")]
pub struct BadHosts;

/// Names every host of a list.
///
/// # Errors
///
/// [`BadHosts`] if brackets or ranges are wrong, or too many are named.
pub fn expand(list: &str) -> Result<Vec<String>, BadHosts> {
    let mut hosts = Vec::new();
    for part in split(list)? {
        expand_one(part, &mut hosts)?;
    }
    Ok(hosts)
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> Result<Vec<&str>, BadHosts> {
    let (mut parts, mut begin, mut inside) = (Vec::new(), 0, false);
    for (place, letter) in list.char_indices() {
        match letter {
            '[' if inside => return Err(BadHosts),
            '[' => inside = true,
            ']' if !inside => return Err(BadHosts),
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&list[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(BadHosts);
    }
    parts.push(&list[begin..]);
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

fn expand_one(part: &str, hosts: &mut Vec<String>) -> Result<(), BadHosts> {
    let Some((prefix, rest)) = part.split_once('[') else {
        hosts.push(part.to_owned());
        return Ok(());
    };
    let (ranges, suffix) = rest.split_once(']').ok_or(BadHosts)?;
    if !suffix.is_empty() {
        return Err(BadHosts);
    }
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return Err(BadHosts);
        }
        let (from, to): (u64, u64) =
            (first.parse().map_err(|_| BadHosts)?, last.parse().map_err(|_| BadHosts)?);
        let width = first.len();
        for number in from..=to {
            if hosts.len() == HOSTS_MAX {
                return Err(BadHosts);
            }
            hosts.push(format!("{prefix}{number:0width$}"));
        }
    }
    Ok(())
}

/// Returns by what names are sorted: their text, then their number.
pub fn order(host: &str) -> (String, u64, String) {
    let prefix = host.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = host[prefix.len()..].parse().unwrap_or(0);
    (prefix.to_owned(), number, host.to_owned())
}

/// A part of a short list of hosts.
enum HostPart {
    /// A name without a number.
    Plain(String),
    /// Names with this text before a number of this many digits; 0 for any.
    Numbered((String, usize)),
}

/// Writes hosts as briefly as Slurm does: `g1,g2,g3,a7` becomes `g[1-3],a7`.
pub fn compress<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut order: Vec<(String, usize)> = Vec::new();
    let mut numbers: BTreeMap<(String, usize), Vec<u64>> = BTreeMap::new();
    let mut parts: Vec<HostPart> = Vec::new();
    for host in hosts {
        let host = host.as_ref();
        let digits = host.len() - host.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = host.split_at(host.len() - digits);
        // Names with leading zeros are of one width; others may have any.
        let width = if number.starts_with('0') { number.len() } else { 0 };
        match number.parse::<u64>() {
            Ok(number) => {
                let key = (prefix.to_owned(), width);
                if !numbers.contains_key(&key) {
                    order.push(key.clone());
                    parts.push(HostPart::Numbered(key.clone()));
                }
                numbers.entry(key).or_default().push(number);
            }
            Err(_) => parts.push(HostPart::Plain(host.to_owned())),
        }
    }
    let text = |part: HostPart| match part {
        HostPart::Plain(host) => host,
        HostPart::Numbered(key) => {
            ranges(&key.0, key.1, numbers.get(&key).map_or(&[][..], Vec::as_slice))
        }
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(",")
}

fn ranges(prefix: &str, width: usize, numbers: &[u64]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if let [one] = sorted.as_slice() {
        return format!("{prefix}{one:0width$}");
    }
    let mut list: Vec<(u64, u64)> = Vec::new();
    for number in sorted {
        match list.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => list.push((number, number)),
        }
    }
    let text = |(first, last): &(u64, u64)| match first == last {
        true => format!("{first:0width$}"),
        false => format!("{first:0width$}-{last:0width$}"),
    };
    format!("{prefix}[{}]", list.iter().map(text).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_named_and_shortened_as_slurm_does() {
        assert_eq!(expand("g[1-3,07-09]").unwrap(), ["g1", "g2", "g3", "g07", "g08", "g09"]);
        assert_eq!(expand("g1,g2").unwrap(), ["g1", "g2"]);
        assert_eq!(compress(&["g1", "g2", "g3", "a7"]), "g[1-3],a7");
        assert_eq!(compress(&["g1", "g3"]), "g[1,3]");
        assert_eq!(compress(&["login"]), "login");
        assert_eq!(expand("g[1-2]x"), Err(BadHosts));
        assert_eq!(expand("g[1-2"), Err(BadHosts));
    }

    proptest! {
        #[test]
        fn a_shortened_list_names_the_same_hosts(
            mut hosts in prop::collection::btree_set("[a-c]{1,2}[0-9]{0,3}", 0..20)
        ) {
            hosts.retain(|host| !host.is_empty());
            let list: Vec<String> = hosts.iter().cloned().collect();
            let mut back = expand(&compress(&list)).unwrap();
            back.sort();
            prop_assert_eq!(back, list);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,24}") {
            let _ = expand(&text);
        }
    }
}
