//! Numbers as NVIDIA's program reads them: the leading number counts, and none is 0.

/// Maximum number of devices that a limit can name.
const DEVICES_MAX: i64 = 32;

/// Reads the whole number at the start of a word; 0 if there is none.
pub fn whole(word: Option<&&str>) -> i64 {
    let word = word.copied().unwrap_or_default();
    let digits = word.strip_prefix('-').unwrap_or(word);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number: i64 = digits[..end].parse().unwrap_or(0);
    if word.starts_with('-') { -number } else { number }
}

/// Reads a process id; 0, which no process has, for everything else.
pub fn pid(word: Option<&&str>) -> u32 {
    u32::try_from(whole(word)).unwrap_or_default()
}

/// Reads a device's ordinal.
pub fn device(word: Option<&&str>) -> Option<u32> {
    let ordinal = whole(word);
    if (0..DEVICES_MAX).contains(&ordinal) { u32::try_from(ordinal).ok() } else { None }
}

/// Reads a percentage: the longest number at the start of the word that is in (0, 100].
pub fn percentage(word: Option<&&str>) -> Option<f64> {
    let word = word?;
    let ends = word.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
    let number: f64 = ends.filter_map(|end| word[..end].parse().ok()).next()?;
    (number > 0.0 && number <= 100.0).then_some(number)
}

/// Reads a limit in bytes: gibibytes with a `G` after the number, otherwise mebibytes. Nothing, or
/// 0, is no limit; too large a number wraps.
pub fn limit(word: Option<&&str>) -> Option<u64> {
    let word = word?;
    let digits = word.strip_prefix('-').unwrap_or(word);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number: u64 = digits[..end].parse().ok()?;
    let number = if word.starts_with('-') { number.wrapping_neg() } else { number };
    let shift = if digits[end..].starts_with(['G', 'g']) { 30 } else { 20 };
    Some(number << shift).filter(|bytes| *bytes > 0)
}

/// Writes a limit: in gibibytes if it is a whole number of them.
pub fn shown(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) {
        format!("{}G", bytes >> 30)
    } else {
        format!("{}M", bytes >> 20)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_limit_has_a_unit_or_is_in_mebibytes() {
        for (word, bytes) in [
            ("2G", Some(2 << 30)),
            ("512M", Some(512 << 20)),
            ("2", Some(2 << 20)),
            ("2.5G", Some(2 << 20)),
            ("junk", None),
            ("0G", None),
        ] {
            assert_eq!(limit(Some(&word)), bytes, "{word}");
        }
        assert_eq!(shown(2048 << 20), "2G");
        assert_eq!(shown(512 << 20), "512M");
    }

    #[test]
    fn a_percentage_is_above_zero_and_at_most_a_hundred() {
        for (word, expected) in [
            ("12abc", Some(12.0)),
            ("1e1", Some(10.0)),
            ("nan", None),
            ("0", None),
            ("100.01", None),
        ] {
            assert_eq!(percentage(Some(&word)), expected, "{word}");
        }
    }

    proptest! {
        #[test]
        fn any_word_is_read_without_complaint(word in ".{0,40}") {
            let word = Some(&word.as_str()).copied();
            let word = word.as_ref();
            whole(word);
            pid(word);
            device(word);
            percentage(word);
            limit(word);
        }

        #[test]
        fn whole_mebibytes_survive_being_shown(mebibytes in 1_u64..1 << 40) {
            let bytes = mebibytes << 20;
            prop_assert_eq!(limit(Some(&shown(bytes).as_str())), Some(bytes));
        }
    }
}
