//! Tables of `sstat` and `sshare`: columns that are chosen by name, with widths such as `account%-30`.

use super::SlurmFailure;
use super::columns::{Width, fit};

/// A column with its usual width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListColumn {
    /// Its heading, by which it is chosen in any case.
    pub name: &'static str,
    /// How wide it is.
    pub width: Width,
}

/// Returns a column whose texts are right-aligned.
pub const fn right(name: &'static str, letters: usize) -> ListColumn {
    ListColumn { name, width: Width { letters, right: true } }
}

/// Returns a column whose texts are left-aligned.
pub const fn left(name: &'static str, letters: usize) -> ListColumn {
    ListColumn { name, width: Width { letters, right: false } }
}

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListStyle {
    pub has_header: bool,
    /// Whether a line of hyphens follows the headings.
    pub is_ruled: bool,
    pub separator: ListSeparator,
}

/// What stands between columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListSeparator {
    /// Each is padded to its width.
    Padding,
    /// `|` behind each column.
    AfterEach,
    /// `|` between columns.
    Between,
}

impl ListSeparator {
    /// Returns the one that two flags request.
    pub const fn of(parsable: bool, parsable2: bool) -> Self {
        match (parsable2, parsable) {
            (true, _) => Self::Between,
            (false, true) => Self::AfterEach,
            (false, false) => Self::Padding,
        }
    }
}

/// Reads a list such as `jobid,maxrss%20`; the places of the columns among all, with their widths.
///
/// # Errors
///
/// [`SlurmFailure::Message`] names a column that does not exist, in the wording of `command`.
pub fn choose(
    command: &str,
    list: &str,
    columns: &[ListColumn],
) -> Result<Vec<(usize, ListColumn)>, SlurmFailure> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let choice = |word: &str| {
        let (name, width) = word.split_once('%').unwrap_or((word, ""));
        let place = columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
        let place = place.ok_or_else(|| {
            SlurmFailure::Message(format!("{command}: error: Invalid field requested: \"{name}\""))
        })?;
        let mut column = columns[place];
        let number = width.trim_start_matches('-');
        if let Ok(letters @ 1..=4_096) = number.parse() {
            column.width = Width { letters, right: !width.starts_with('-') };
        }
        Ok((place, column))
    };
    words.map(choice).collect()
}

/// Draws a table; each row has a text for every column that there is.
pub fn draw(style: ListStyle, chosen: &[(usize, ListColumn)], rows: &[Vec<String>]) -> String {
    let is_padded = style.separator == ListSeparator::Padding;
    let line = |cells: &[String]| match style.separator {
        ListSeparator::Between => cells.join("|") + "\n",
        ListSeparator::AfterEach => cells.join("|") + "|\n",
        ListSeparator::Padding => {
            let padded = cells.iter().zip(chosen);
            padded.map(|(cell, (_, column))| fit(cell, column.width) + " ").collect::<String>()
                + "\n"
        }
    };
    let mut text = String::new();
    if style.has_header {
        let names: Vec<String> = chosen.iter().map(|(_, column)| column.name.to_owned()).collect();
        text += &line(&names);
        if is_padded && style.is_ruled {
            let rules = chosen.iter().map(|(_, column)| "-".repeat(column.width.letters));
            text += &line(&rules.collect::<Vec<_>>());
        }
    }
    for row in rows {
        let cells: Vec<String> =
            chosen.iter().map(|(place, _)| row.get(*place).cloned().unwrap_or_default()).collect();
        text += &line(&cells);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[ListColumn] = &[left("Account", 9), right("User", 6)];

    #[test]
    fn columns_are_chosen_by_name_and_drawn_in_three_ways() {
        let rows = [vec!["lab".to_owned(), "ada".to_owned()]];
        let drawn = |list: &str, separator| {
            let style = ListStyle { has_header: true, is_ruled: true, separator };
            draw(style, &choose("sshare", list, COLUMNS).unwrap(), &rows)
        };

        assert_eq!(
            drawn("account,user", ListSeparator::Padding),
            "Account     User \n--------- ------ \nlab          ada \n"
        );
        assert_eq!(drawn("User,Account", ListSeparator::Between), "User|Account\nada|lab\n");
        assert_eq!(drawn("user%-4", ListSeparator::AfterEach), "User|\nada|\n");
        let unknown = choose("sshare", "nope", COLUMNS).unwrap_err().to_string();
        assert_eq!(unknown, "sshare: error: Invalid field requested: \"nope\"");
    }
}
