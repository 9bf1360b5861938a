//! The prose of Markdown: no code blocks, no addresses of links, a table's cells one by one.

use crate::sentences::{CODE_MARK, Paragraph};

/// Returns the paragraphs of a Markdown text whose first line has the number `first`.
pub fn paragraphs(text: &str, first: usize) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut open = Paragraph::default();
    let mut fence: Option<&str> = None;
    let mut is_in_list = false;
    for (index, raw) in text.lines().enumerate() {
        let line = raw.trim();
        let number = first + index;
        if let Some(mark) = fence {
            if line.starts_with(mark) {
                fence = None;
            }
            continue;
        }
        if let Some(mark) = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark)) {
            close(&mut open, &mut found);
            fence = Some(mark);
            continue;
        }
        let is_indented = raw.starts_with("    ") || raw.starts_with('\t');
        if is_indented && open.lines.is_empty() && !is_in_list {
            continue;
        }
        if line.is_empty() || line.starts_with("<!--") {
            close(&mut open, &mut found);
            continue;
        }
        if line.starts_with('|') {
            close(&mut open, &mut found);
            let is_ruler = line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
            for cell in line.split('|').filter(|cell| !is_ruler && !cell.trim().is_empty()) {
                found.push(Paragraph::new(number, plain(cell)));
            }
            continue;
        }
        if let Some(heading) = line.strip_prefix('#') {
            close(&mut open, &mut found);
            is_in_list = false;
            found.push(Paragraph::new(number, plain(heading.trim_start_matches('#'))));
            continue;
        }
        let item = item_text(line);
        if item.is_some() {
            close(&mut open, &mut found);
            is_in_list = true;
        } else if !raw.starts_with(' ') && open.lines.is_empty() {
            is_in_list = false;
        }
        open.lines.push((number, item.unwrap_or(line).to_owned()));
    }
    close(&mut open, &mut found);
    found
}

/// Ends a paragraph; links and code may run over its lines, so they are replaced only now.
fn close(open: &mut Paragraph, found: &mut Vec<Paragraph>) {
    if open.lines.is_empty() {
        return;
    }
    let paragraph = std::mem::take(open);
    let joined: Vec<&str> = paragraph.lines.iter().map(|(_, text)| text.as_str()).collect();
    let plain = plain(&joined.join("\n"));
    let numbers = paragraph.lines.iter().map(|(number, _)| *number);
    let lines = numbers.zip(plain.split('\n').map(str::to_owned)).collect();
    found.push(Paragraph { lines });
}

fn item_text(line: &str) -> Option<&str> {
    for bullet in ["- ", "* ", "+ ", "> "] {
        if let Some(rest) = line.strip_prefix(bullet) {
            return Some(rest);
        }
    }
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = digits.len() < line.len() && line.len() - digits.len() <= 3;
    numbered.then(|| digits.strip_prefix(". ")).flatten()
}

/// Takes marks away: code becomes one word, a link its text. Line ends stay where they are.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            '`' => {
                let ticks = rest.len() - rest.trim_start_matches('`').len();
                let (mark, after) = rest.split_at(ticks);
                let end = after.find(mark).unwrap_or(0);
                out.push(CODE_MARK);
                out.push_str("code");
                out.push(CODE_MARK);
                out.extend(after[..end].chars().filter(|c| *c == '\n'));
                rest = &after[(end + ticks).min(after.len())..];
            }
            ']' if rest[1..].starts_with('(') => {
                let end = rest.find(')').map_or(rest.len(), |at| at + 1);
                out.extend(rest[..end].chars().filter(|c| *c == '\n'));
                rest = &rest[end..];
            }
            '[' | ']' | '*' => rest = &rest[1..],
            _ => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(markdown: &str) -> Vec<(usize, String)> {
        let joined = |p: &Paragraph| {
            let lines: Vec<&str> = p.lines.iter().map(|(_, text)| text.as_str()).collect();
            (p.lines[0].0, lines.join(" "))
        };
        paragraphs(markdown, 1).iter().map(joined).collect()
    }

    fn one(line: usize, text: &str) -> (usize, String) {
        (line, text.to_owned())
    }

    #[test]
    fn code_blocks_are_no_prose() {
        let markdown = "Before.\n\n```console\n$ tessera queue\n```\n\n    indented\n\nAfter.\n";

        assert_eq!(texts(markdown), [one(1, "Before."), one(9, "After.")]);
    }

    #[test]
    fn each_cell_of_a_table_stands_for_itself() {
        let markdown = "| a | b |\n|---|---|\n| one two | three |\n";

        let expected = [one(1, " a "), one(1, " b "), one(3, " one two "), one(3, " three ")];
        assert_eq!(texts(markdown), expected);
    }

    #[test]
    fn each_item_of_a_list_stands_for_itself() {
        let markdown = "A list:\n- first\n  goes on\n- second\n\n1. third\n";

        let expected =
            [one(1, "A list:"), one(2, "first goes on"), one(4, "second"), one(6, "third")];
        assert_eq!(texts(markdown), expected);
    }

    #[test]
    fn a_link_counts_by_its_text_and_code_as_one_word() {
        let markdown = "See [the\nguide](docs/a%20long%20name.md) for `a b\nc` and more.";

        assert_eq!(texts(markdown), [one(1, "See the guide for `code`  and more.")]);
    }
}
