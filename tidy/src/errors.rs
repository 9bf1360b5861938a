//! Errors are types: no function returns `Result<_, String>` or `Result<_, &str>`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::rust::{attribute, is_cfg_test};

/// Returns the lines outside of tests in which a result's error is plain text.
///
/// # Errors
///
/// If the source isn't Rust.
pub fn lines(source: &str) -> anyhow::Result<Vec<usize>> {
    let tokens: TokenStream = source.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut found = Vec::new();
    read(tokens, &mut found);
    Ok(found)
}

fn read(tokens: TokenStream, found: &mut Vec<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut is_test = false;
    let mut at = 0;
    while at < tokens.len() {
        if let Some((group, length)) = attribute(&tokens[at..]) {
            is_test |= is_cfg_test(group);
            at += length;
            continue;
        }
        match &tokens[at] {
            TokenTree::Group(group) => {
                if !is_test {
                    read(group.stream(), found);
                }
                is_test &= group.delimiter() != Delimiter::Brace;
            }
            TokenTree::Ident(name) if !is_test && name == "Result" => {
                if error_of(&tokens[at + 1..]).is_some_and(|error| is_text(&error)) {
                    found.push(name.span().start().line);
                }
            }
            TokenTree::Punct(mark) => is_test &= mark.as_char() != ';',
            TokenTree::Ident(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// Returns the second argument of the generic arguments that begin here.
fn error_of(tokens: &[TokenTree]) -> Option<Vec<String>> {
    let mut depth = 0_usize;
    let mut error = None;
    let mut before = ' ';
    for token in tokens {
        let mark = if let TokenTree::Punct(mark) = token { mark.as_char() } else { ' ' };
        match mark {
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if before != '-' => depth = depth.checked_sub(1)?,
            ',' if depth == 1 => error = Some(Vec::new()),
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 {
            return error;
        }
        if let (Some(error), true) = (&mut error, mark != ',' || depth > 1) {
            error.push(token.to_string());
        }
        before = mark;
    }
    None
}

fn is_text(error: &[String]) -> bool {
    let words: Vec<&str> = error.iter().map(String::as_str).collect();
    matches!(words[..], ["String"] | ["&", .., "str"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn no_result_outside_of_tests_has_a_text_as_its_error() {
        let root = files::repository();
        let mut found = Vec::new();
        for file in files::read_files(&root, "", ".rs").unwrap() {
            if !files::is_test_file(&file.path) {
                let lines = lines(&file.text).unwrap();
                found.extend(lines.into_iter().map(|line| format!("{}:{line}", file.path)));
            }
        }

        assert_eq!(found, [""; 0], "make the error a type: an enum with `thiserror`");
    }

    #[test]
    fn a_text_is_found_as_an_error_only() {
        let source = "fn a() -> Result<Vec<u8>, String> {}\nfn b() -> Result<(), &'static str> {}\n\
                      fn c() -> Result<BTreeMap<u8, String>, Error> {}\n\
                      fn d() -> io::Result<&'static str> {}\nfn e() -> Result<fn() -> u8, String> {}\n\
                      #[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }\n";

        assert_eq!(lines(source).unwrap(), [1, 2, 5]);
    }
}
