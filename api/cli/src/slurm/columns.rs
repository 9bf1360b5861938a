//! Columns: `%.18i %j` of `-o`, `JobID:20,State:.12` of `-O`, and the lists of `sacct -o`.

/// One column of a listing.
pub struct Column<T> {
    /// Its letter after `%`, if it has one.
    pub code: Option<char>,
    /// Its name in `-O` and in `sacct -o`, in any case.
    pub name: &'static str,
    /// Its heading with a letter.
    pub heading: &'static str,
    /// Its heading with a name.
    pub long_heading: &'static str,
    pub cell: fn(&T) -> String,
}

/// Returns a column.
pub const fn column<T>(
    code: Option<char>,
    name: &'static str,
    heading: &'static str,
    long_heading: &'static str,
    cell: fn(&T) -> String,
) -> Column<T> {
    Column { code, name, heading, long_heading, cell }
}

/// Width and side of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// Number of characters; longer texts are cut.
    pub letters: usize,
    /// Whether the text is right-aligned.
    pub right: bool,
}

/// A part of a line.
pub enum Part<T: 'static> {
    /// Text as it is.
    Text(String),
    /// A column, with its width if it has one.
    Column(&'static Column<T>, Option<Width>, Heading),
}

/// Which heading a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// That of letters.
    Short,
    /// That of names.
    Long,
}

/// Widest column.
const WIDTH_MAX: usize = 1_000;
/// Width of columns of `-O` that state none.
const NAMED_WIDTH: usize = 20;

/// Reads the format of `-o`. A letter that no column has is copied, as Slurm does.
pub fn of_codes<T>(text: &str, columns: &'static [Column<T>]) -> Vec<Part<T>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        push_text(&mut parts, before);
        let (right, after) = after.strip_prefix('.').map_or((false, after), |rest| (true, rest));
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        let Some(code) = after.chars().next() else {
            rest = "";
            break;
        };
        rest = &after[code.len_utf8()..];
        let width = number.parse().ok().filter(|letters| (1..=WIDTH_MAX).contains(letters));
        match columns.iter().find(|column| column.code == Some(code)) {
            Some(column) => {
                let width = width.map(|letters| Width { letters, right });
                parts.push(Part::Column(column, width, Heading::Short));
            }
            None => push_text(&mut parts, &code.to_string()),
        }
    }
    push_text(&mut parts, rest);
    parts
}

fn push_text<T>(parts: &mut Vec<Part<T>>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

/// A name that no column has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownColumn(String);

/// Reads the format of `-O`: names followed by `:20` or `:.20`.
///
/// # Errors
///
/// [`UnknownColumn`].
pub fn of_names<T>(
    text: &str,
    columns: &'static [Column<T>],
) -> Result<Vec<Part<T>>, UnknownColumn> {
    let mut parts = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, width) = word.split_once(':').unwrap_or((word, ""));
        let (right, number) = width.strip_prefix('.').map_or((false, width), |rest| (true, rest));
        let letters = number.parse().unwrap_or(NAMED_WIDTH).clamp(1, WIDTH_MAX);
        let column = find(name, columns).ok_or_else(|| UnknownColumn(name.to_owned()))?;
        parts.push(Part::Column(column, Some(Width { letters, right }), Heading::Long));
    }
    Ok(parts)
}

/// Finds a column by its name, ignoring case.
pub fn find<T>(name: &str, columns: &'static [Column<T>]) -> Option<&'static Column<T>> {
    columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
}

/// Draws the line of headings.
pub fn headings<T>(parts: &[Part<T>]) -> String {
    line(parts, |column, heading| {
        match heading {
            Heading::Short => column.heading,
            Heading::Long => column.long_heading,
        }
        .to_owned()
    })
}

impl<T> Part<T> {
    /// Draws this part of a row.
    pub fn draw(&self, of: &T) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Column(column, None, _) => (column.cell)(of),
            Self::Column(column, Some(width), _) => fit(&(column.cell)(of), *width),
        }
    }
}

/// Draws the line of one row.
pub fn row<T>(parts: &[Part<T>], of: &T) -> String {
    line(parts, |column, _| (column.cell)(of))
}

fn line<T>(parts: &[Part<T>], text: impl Fn(&'static Column<T>, Heading) -> String) -> String {
    let mut line = String::new();
    for part in parts {
        match part {
            Part::Text(text) => line.push_str(text),
            Part::Column(column, None, heading) => line.push_str(&text(column, *heading)),
            Part::Column(column, Some(width), heading) => {
                line.push_str(&fit(&text(column, *heading), *width));
            }
        }
    }
    line.push('\n');
    line
}

/// Pads or cuts a text to a width.
pub fn fit(text: &str, width: Width) -> String {
    let cut: String = text.chars().take(width.letters).collect();
    let letters = width.letters;
    if width.right { format!("{cut:>letters$}") } else { format!("{cut:<letters$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COLUMNS: &[Column<u32>] = &[
        column(Some('i'), "jobid", "JOBID", "JOBID", |n| n.to_string()),
        column(None, "double", "DOUBLE", "DOUBLE", |n| (n * 2).to_string()),
    ];

    #[test]
    fn codes_have_widths_and_unknown_ones_are_copied() {
        let parts = of_codes("%.5i|%3i|%i%q!", COLUMNS);

        assert_eq!(headings(&parts), "JOBID|JOB|JOBIDq!\n");
        assert_eq!(row(&parts, &42), "   42|42 |42q!\n");
    }

    #[test]
    fn names_have_twenty_letters_unless_they_say_otherwise() {
        let parts = of_names("JobID,Double:.4", COLUMNS).unwrap();

        assert_eq!(row(&parts, &42), format!("{:<20}{:>4}\n", 42, 84));
        assert_eq!(of_names("nope", COLUMNS).err(), Some(UnknownColumn("nope".to_owned())));
    }
}
