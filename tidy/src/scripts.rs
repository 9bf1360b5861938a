//! The texts in shell and Python sources: comments and quoted strings.

use crate::markdown;
use crate::sentences::Paragraph;

/// Returns the comments and strings of a source, a line each.
///
/// It reads what shell and Python have in common. `#` begins a comment after a space or at the start of a line. A
/// backslash takes the next letter with it. Three quotation marks enclose several lines. An apostrophe within a
/// word opens nothing.
pub fn texts(source: &str) -> Vec<Paragraph> {
    let letters: Vec<char> = source.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    let mut before = '\n';
    while at < letters.len() {
        let letter = letters[at];
        let begun = line;
        let end = match letter {
            '#' if before.is_whitespace() => end_of_line(&letters, at),
            '"' | '\'' if !before.is_alphanumeric() || letter == '"' => {
                end_of_string(&letters, at, letter)
            }
            _ => at,
        };
        if end > at {
            let text: String = letters[at..end].iter().collect();
            for (offset, part) in text.split('\n').enumerate() {
                let plain = markdown::plain(part.trim_matches(['"', '\'', '#', ' ']));
                if !plain.is_empty() {
                    found.push(Paragraph::new(begun + offset, plain));
                }
            }
            line += text.matches('\n').count();
            before = letters[end - 1];
            at = end;
        } else {
            line += usize::from(letter == '\n');
            before = letter;
            at += 1;
        }
    }
    found
}

fn end_of_line(letters: &[char], from: usize) -> usize {
    letters[from..].iter().position(|letter| *letter == '\n').map_or(letters.len(), |at| from + at)
}

/// Returns the place behind the string that opens here.
fn end_of_string(letters: &[char], from: usize, mark: char) -> usize {
    let is_triple = letters[from..].starts_with(&[mark; 3]);
    let length = if is_triple { 3 } else { 1 };
    let mut at = from + length;
    while at < letters.len() {
        if letters[at] == '\\' {
            at += 2;
        } else if letters[at..].starts_with(&[mark; 3][..length]) {
            return at + length;
        } else {
            at += 1;
        }
    }
    letters.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(source: &str) -> Vec<(usize, String)> {
        let paragraphs = texts(source);
        let lines = paragraphs.into_iter().flat_map(|paragraph| paragraph.lines);
        lines.collect()
    }

    #[test]
    fn comments_and_strings_of_shell_are_found_with_their_lines() {
        let source = "#!/bin/sh\n# A reason.\nsay \"built: $#\" # done\nx='two\nlines'\n";

        let found = lines(source);

        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["!/bin/sh", "A reason.", "built: $", "done", "two", "lines"]);
        assert_eq!(found[5].0, 5);
    }

    #[test]
    fn docstrings_of_python_and_apostrophes_in_them_are_read_whole() {
        let source =
            "def f():\n    \"\"\"A job's end.\n\n    Not \"more\".\n    \"\"\"\n    g('it')\n";

        let found = lines(source);

        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["A job's end.", "Not \"more\".", "it"]);
        assert_eq!(found[1].0, 4);
    }
}
