//! `docs/commands.md` is what `--help` prints for every verb. Written by the test below.

use std::env;
use std::fs;

use clap::{Command, CommandFactory as _};

use super::Cli;

/// The begin of the page, before the first verb.
const HEAD: &str = "# The `tessera` command\n\n\
    This page lists every verb with its options, as `tessera VERB --help` prints them.\n\
    [operations.md](operations.md) lists the options of the daemons.\n";

/// Returns what `--help` prints for a verb, given by its path from the program's name.
fn help(path: &[String]) -> String {
    let words = path.iter().map(String::as_str).chain(["--help"]);
    let printed = Cli::command().try_get_matches_from(words).unwrap_err();
    printed.render().to_string().lines().map(without_values).collect::<Vec<_>>().join("\n")
}

/// Removes the values that variables have where the test runs.
fn without_values(line: &str) -> String {
    let (mut rest, mut text) = (line, String::new());
    while let Some((before, after)) = rest.split_once("[env: ") {
        let (variable, behind) = after.split_once(']').unwrap_or((after, ""));
        let name = variable.split_inclusive('=').next().unwrap_or_default();
        text += &format!("{before}[env: {name}]");
        rest = behind;
    }
    (text + rest).trim_end().to_owned()
}

/// Appends the sections of a verb and of the verbs below it.
fn append(command: &Command, path: &mut Vec<String>, page: &mut String) {
    path.push(command.get_name().to_owned());
    let level = "#".repeat(path.len() + 1);
    page.push_str(&format!("\n{level} `{}`\n\n```text\n{}\n```\n", path.join(" "), help(path)));
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    for verb in verbs.filter(|verb| verb.get_name() != "help") {
        append(verb, path, page);
    }
    path.pop();
}

#[test]
fn the_page_of_the_commands_is_what_their_help_prints() {
    let mut page = HEAD.to_owned();
    append(&Cli::command(), &mut Vec::new(), &mut page);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    if env::var_os("TESSERA_WRITE_DOCS").is_some() {
        fs::write(path, &page).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();

    let differs = written.lines().zip(page.lines()).find(|(written, printed)| written != printed);
    assert_eq!(differs, None, "write docs/commands.md again with TESSERA_WRITE_DOCS=1");
    assert_eq!(written.len(), page.len(), "write docs/commands.md again with TESSERA_WRITE_DOCS=1");
}

#[test]
fn values_of_variables_are_left_out() {
    let line = "  --url <URL>  Address [env: TESSERA_URL=http://a] or [env: B=]  ";

    assert_eq!(without_values(line), "  --url <URL>  Address [env: TESSERA_URL=] or [env: B=]");
}
