//! The texts in Rust sources: doc comments and string literals outside of tests.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, Literal, Spacing, TokenStream, TokenTree};

use crate::markdown;
use crate::sentences::Paragraph;

/// What a source file has for people to read.
#[derive(Clone, Debug, Default)]
pub struct RustTexts {
    /// Doc comments, of files and of items.
    pub comments: Vec<Paragraph>,
    /// Other comments that have a line to themselves, also those within tests.
    pub plain_comments: Vec<Paragraph>,
    /// String literals: messages, help texts, metric names.
    pub strings: Vec<Paragraph>,
    /// Names that the file defines, each split into its words.
    pub names: Vec<Paragraph>,
    /// The first paragraph of each function's doc comment.
    pub functions: Vec<Paragraph>,
    /// Items, fields and variants whose doc comment is one paragraph.
    pub described: Vec<DescribedItem>,
}

/// An item, a field or a variant, and its doc comment.
#[derive(Clone, Debug)]
pub struct DescribedItem {
    /// Its name, split into words.
    pub name: String,
    /// The whole comment.
    pub comment: Paragraph,
}

/// Macros whose strings are no prose: SQL, and code that is written as text.
const CODE_MACROS: [&str; 11] = [
    "query",
    "query_as",
    "query_scalar",
    "query_file",
    "include_str",
    "include_bytes",
    "concat_bytes",
    "env",
    "option_env",
    "assert",
    "debug_assert",
];

/// Words after which a name is defined.
const DEFINING: [&str; 9] =
    ["fn", "struct", "enum", "trait", "mod", "type", "const", "static", "union"];

/// Words that may stand between a doc comment and the name that it describes.
const BEFORE_NAMES: [&str; 9] =
    ["pub", "crate", "unsafe", "async", "extern", "mut", "impl", "macro_rules", "use"];

/// Reads the texts of a source file.
///
/// # Errors
///
/// If it isn't Rust.
pub fn texts(source: &str) -> anyhow::Result<RustTexts> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let tokens: TokenStream = source.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut reader = Reader::default();
    let mut literal_lines = BTreeSet::new();
    collect_literal_lines(tokens.clone(), &mut literal_lines);
    reader.read(tokens);
    reader.close_comment();
    reader.found.plain_comments = plain_comments(source, &literal_lines);
    Ok(reader.found)
}

/// Collects the lines of literals, except those on which one begins.
fn collect_literal_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_literal_lines(group.stream(), lines),
            TokenTree::Literal(literal) => {
                lines.extend(literal.span().start().line + 1..=literal.span().end().line);
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Reads comments of two slashes, which are not tokens. A line within a literal is no comment.
fn plain_comments(source: &str, literal_lines: &BTreeSet<usize>) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut block: Vec<(usize, &str)> = Vec::new();
    let mut close = |block: &mut Vec<(usize, &str)>| {
        if let Some((first, _)) = block.first() {
            let text: Vec<&str> = block.iter().map(|(_, text)| *text).collect();
            found.extend(markdown::paragraphs(&text.join("\n"), *first));
        }
        block.clear();
    };
    for (index, line) in source.lines().enumerate() {
        let text = line.trim_start().strip_prefix("//");
        let is_doc = text.is_some_and(|text| text.starts_with(['/', '!']));
        match text {
            Some(text) if !is_doc && !literal_lines.contains(&(index + 1)) => {
                block.push((index + 1, text.strip_prefix(' ').unwrap_or(text)));
            }
            _ => close(&mut block),
        }
    }
    close(&mut block);
    found
}

#[derive(Default)]
struct Reader {
    found: RustTexts,
    /// The lines of the doc comment that is being read.
    comment: Vec<(usize, String)>,
    /// The first paragraph of the item that begins here.
    described_by: Option<Paragraph>,
    /// The comment of the item that begins here, if it is one paragraph and its name was not read yet.
    whole_comment: Option<Paragraph>,
}

impl Reader {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        let mut is_test = false;
        while at < tokens.len() {
            let rest = &tokens[at..];
            if let Some((group, length)) = attribute(rest) {
                match doc_line(group) {
                    Some(line) => self.add_comment_line(line),
                    None if is_cfg_test(group) => is_test = true,
                    None => {
                        self.close_comment();
                        let described_by = self.described_by.take();
                        let whole_comment = self.whole_comment.take();
                        self.read(group.stream());
                        self.described_by = described_by;
                        self.whole_comment = whole_comment;
                    }
                }
                at += length;
                continue;
            }
            self.close_comment();
            self.pair_name_and_comment(&tokens[at]);
            match &tokens[at] {
                TokenTree::Group(group) => {
                    // `pub(crate)` is a part of the item that the comment describes.
                    let is_visibility = matches!(
                        tokens[..at].last(),
                        Some(TokenTree::Ident(word)) if word == "pub"
                    );
                    if !is_visibility {
                        self.described_by = None;
                        self.whole_comment = None;
                    }
                    let skipped = (is_test && group.delimiter() == Delimiter::Brace)
                        || is_code_macro(&tokens[..at]);
                    if !skipped {
                        self.read(group.stream());
                    }
                    is_test &= group.delimiter() != Delimiter::Brace;
                }
                TokenTree::Literal(literal) => self.add_literal(literal),
                TokenTree::Ident(word) if DEFINING.contains(&word.to_string().as_str()) => {
                    let described_by = self.described_by.take();
                    if word == "fn" {
                        self.found.functions.extend(described_by);
                    } else if word == "const" {
                        self.described_by = described_by;
                    }
                    if let (false, Some(TokenTree::Ident(name))) = (is_test, tokens.get(at + 1)) {
                        let line = name.span().start().line;
                        self.found.names.push(Paragraph::new(line, words_of(&name.to_string())));
                    }
                }
                TokenTree::Ident(name) if is_defined_here(&tokens[..at], &tokens[at + 1..]) => {
                    if !is_test {
                        let line = name.span().start().line;
                        self.found.names.push(Paragraph::new(line, words_of(&name.to_string())));
                    }
                }
                TokenTree::Punct(mark) => {
                    self.described_by = None;
                    self.whole_comment = None;
                    is_test &= mark.as_char() != ';';
                }
                TokenTree::Ident(_) => {}
            }
            at += 1;
        }
        self.close_comment();
    }

    /// Takes the comment that was read last for a token, if that is the name of an item. Functions are no
    /// such items: their comments begin with a verb.
    fn pair_name_and_comment(&mut self, token: &TokenTree) {
        let TokenTree::Ident(word) = token else { return };
        let word = word.to_string();
        if word == "fn" {
            self.whole_comment = None;
        } else if !DEFINING.contains(&word.as_str()) && !BEFORE_NAMES.contains(&word.as_str()) {
            let comment = self.whole_comment.take();
            let name = words_of(word.trim_start_matches("r#"));
            self.found.described.extend(comment.map(|comment| DescribedItem { name, comment }));
        }
    }

    fn add_literal(&mut self, literal: &Literal) {
        let Some(text) = string_value(&literal.to_string()) else { return };
        let first = literal.span().start().line;
        for (index, line) in text.split('\n').enumerate().filter(|(_, line)| !line.is_empty()) {
            let plain = markdown::plain(&without_placeholders(line));
            self.found.strings.push(Paragraph::new(first + index, plain));
        }
    }

    fn add_comment_line(&mut self, line: (usize, String)) {
        // The comment of a file and that of its first item have a blank line between them.
        if self.comment.last().is_some_and(|(last, _)| last + 1 != line.0) {
            self.close_comment();
        }
        self.comment.push(line);
    }

    fn close_comment(&mut self) {
        let lines = std::mem::take(&mut self.comment);
        let Some((first, _)) = lines.first() else { return };
        let first = *first;
        let text: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        let unindented: Vec<&str> =
            text.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let paragraphs = markdown::paragraphs(&unindented.join("\n"), first);
        self.described_by = paragraphs.first().cloned();
        self.whole_comment = match paragraphs.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        self.found.comments.extend(paragraphs);
    }
}

/// Returns whether a name between these tokens is that of a field, a parameter or a variable: one colon follows,
/// or `let`, `mut` or `for` stands before.
fn is_defined_here(before: &[TokenTree], after: &[TokenTree]) -> bool {
    let has_type = matches!(
        after.first(),
        Some(TokenTree::Punct(mark)) if mark.as_char() == ':' && mark.spacing() == Spacing::Alone
    );
    let is_bound = matches!(
        before.last(),
        Some(TokenTree::Ident(word)) if ["let", "mut", "for"].iter().any(|known| word == known)
    );
    let is_path_end = matches!(
        before.last(),
        Some(TokenTree::Punct(mark)) if mark.as_char() == ':'
    );
    let is_read = matches!(
        before.last(),
        Some(TokenTree::Ident(word)) if DEFINING.contains(&word.to_string().as_str())
    );
    is_bound || (has_type && !is_path_end && !is_read)
}

/// Returns the brackets of an attribute at the start of the tokens, and how many tokens it takes.
pub(crate) fn attribute(tokens: &[TokenTree]) -> Option<(&Group, usize)> {
    let is_mark = |tree: &TokenTree, c| matches!(tree, TokenTree::Punct(p) if p.as_char() == c);
    if !is_mark(tokens.first()?, '#') {
        return None;
    }
    let at = 1 + usize::from(is_mark(tokens.get(1)?, '!'));
    match tokens.get(at)? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => Some((group, at + 1)),
        _ => None,
    }
}

fn doc_line(attribute: &Group) -> Option<(usize, String)> {
    let mut tokens = attribute.stream().into_iter();
    match (tokens.next()?, tokens.next()?, tokens.next()?) {
        (TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(text))
            if name == "doc" =>
        {
            Some((text.span().start().line, string_value(&text.to_string())?))
        }
        _ => None,
    }
}

pub(crate) fn is_cfg_test(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,") || text == "test"
}

fn is_code_macro(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(name), TokenTree::Punct(mark)] if mark.as_char() == '!' => {
            CODE_MACROS.contains(&name.to_string().as_str())
        }
        [.., TokenTree::Ident(name)] => {
            matches!(name.to_string().as_str(), "query" | "query_as" | "query_scalar" | "raw_sql")
        }
        _ => false,
    }
}

/// Returns what a string literal stands for, or nothing for other literals.
fn string_value(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let text = raw.trim_matches('#');
        return text.strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
    }
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('\n')) => {
                while chars.next_if(|c| c.is_whitespace()).is_some() {}
                continue;
            }
            ('\\', Some(other)) => out.push(if *other == 't' { ' ' } else { *other }),
            _ => {
                out.push(c);
                continue;
            }
        }
        chars.next();
    }
    Some(out)
}

/// Replaces each `{…}` with one word.
fn without_placeholders(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut depth = 0_usize;
    for c in text.chars() {
        match c {
            '{' => {
                depth += 1;
                if depth == 1 {
                    out.push('X');
                }
            }
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

/// Splits a name as `snake_case` and `CamelCase` do.
fn words_of(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c == '_' {
            out.push(' ');
        } else {
            if c.is_uppercase() && out.chars().next_back().is_some_and(char::is_lowercase) {
                out.push(' ');
            }
            out.push(c);
        }
    }
    out.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(paragraphs: &[Paragraph]) -> Vec<(usize, &str)> {
        paragraphs
            .iter()
            .flat_map(|paragraph| &paragraph.lines)
            .map(|(line, text)| (*line, text.as_str()))
            .collect()
    }

    #[test]
    fn comments_strings_and_names_are_found_with_their_lines() {
        let source = "//! A file.\n\n/// A job's end.\n#[error(\"no job {id:?} \\\n    here\")]\n\
                      pub struct JobEnd;\nconst TEXT: &str = \"two\\nlines\";\n";

        let texts = texts(source).unwrap();

        assert_eq!(lines(&texts.comments), [(1, "A file."), (3, "A job's end.")]);
        assert_eq!(lines(&texts.strings), [(4, "no job X here"), (7, "two"), (8, "lines")]);
        assert_eq!(lines(&texts.names), [(6, "job end"), (7, "text")]);
    }

    #[test]
    fn plain_comments_are_found_also_in_tests_and_not_in_literals() {
        let source = "// One\n// text.\nconst A: &str = \"a\n// no\n\";\n#[cfg(test)]\nmod tests {\n    \
                      /// Doc.\n    // Two.\n    fn a() {}\n}\n";

        let texts = texts(source).unwrap();

        assert_eq!(lines(&texts.plain_comments), [(1, "One"), (2, "text."), (9, "Two.")]);
    }

    #[test]
    fn items_fields_and_variants_are_found_with_their_comments_and_functions_are_not() {
        let source = "/// A.\n#[derive(Debug)]\npub(crate) enum KindOfJob {\n    /// B.\n    One,\n    /// C.\n    \
                      #[serde(rename = \"x\")]\n    Two { /** D. */ r#type: u8 },\n}\n/// E.\npub const fn f() {}\n\
                      /// F.\n///\n/// G.\nstruct Long;\n";

        let texts = texts(source).unwrap();

        let found: Vec<_> = texts
            .described
            .iter()
            .map(|item| (item.name.as_str(), item.comment.lines[0].0))
            .collect();
        assert_eq!(found, [("kind of job", 1), ("one", 4), ("two", 6), ("type", 8)]);
    }

    #[test]
    fn tests_and_sql_are_left_out() {
        let source = "fn a() { query!(\"SELECT told\"); sqlx::query(\"DELETE\"); f(\"kept\") }\n\
                      #[cfg(test)]\nmod tests { fn b() { f(\"no\") } }\nfn c() { f(\"too\") }\n";

        let texts = texts(source).unwrap();

        assert_eq!(lines(&texts.strings), [(1, "kept"), (4, "too")]);
    }
}
