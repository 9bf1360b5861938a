//! Folders of one crate that import each other.
//!
//! Each file is a module, and each folder is the module of the same name. For an import between
//! two files the modules next below their common parent count: `core/moving/plan.rs` that uses
//! `core/gangs.rs` is an arrow from `core/moving` to `core/gangs`. A file and its own submodules
//! may use each other. A ring among plain files of one folder is allowed; one with a folder isn't.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::files;

/// Modules of one crate that use each other, at least one of them a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ring {
    /// The folder of the crate's sources.
    pub source_folder: String,
    /// The modules, by their paths.
    pub modules: BTreeSet<String>,
    /// The imports between them: from, to, and the first place that shows it.
    pub imports: Vec<(String, String, String)>,
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        write!(f, "{}: {} import each other", self.source_folder, modules.join(", "))?;
        for (from, to, place) in &self.imports {
            write!(f, "\n    {from} uses {to}: {place}")?;
        }
        Ok(())
    }
}

/// Finds the rings of every crate in the repository.
///
/// # Errors
///
/// If a file can't be read, or a source isn't Rust.
pub fn find_rings(root: &Path) -> anyhow::Result<Vec<Ring>> {
    let mut rings = Vec::new();
    let manifests = files::read_files(root, "", "Cargo.toml")?;
    for manifest in manifests.iter().filter(|file| file.path != "Cargo.toml") {
        let folder = manifest.path.replace("Cargo.toml", "src");
        if !root.join(&folder).is_dir() {
            continue;
        }
        let mut sources = Vec::new();
        for file in files::read_files(root, &folder, ".rs")? {
            let inner = file.path[folder.len() + 1..].to_owned();
            // Programs and tests stand at the end of every arrow.
            if !inner.starts_with("bin/") && !files::is_test_file(&inner) {
                sources.push((inner, file.text));
            }
        }
        rings.extend(find_in_sources(&folder, &sources)?);
    }
    Ok(rings)
}

/// Finds the rings among the sources of one crate, given by their paths below `src`.
///
/// # Errors
///
/// If a source isn't Rust.
pub fn find_in_sources(folder: &str, sources: &[(String, String)]) -> anyhow::Result<Vec<Ring>> {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|(path, _)| module_of(path)).collect();
    let mut arrows: Arrows = BTreeMap::new();
    for (path, text) in sources {
        let module = module_of(path);
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow::anyhow!("{folder}/{path}: {error}"))?;
        let mut uses = Vec::new();
        collect_uses(tokens, &module, &mut uses);
        for (line, target) in uses {
            let known = (0..=target.len()).rev().find(|n| modules.contains(&target[..*n]));
            let target = &target[..known.unwrap_or(0)];
            let common = module.iter().zip(target).take_while(|(a, b)| a == b).count();
            if common == module.len() || common == target.len() {
                continue;
            }
            let (from, to) = (module[..=common].to_vec(), target[..=common].to_vec());
            arrows.entry((from, to)).or_insert_with(|| format!("{folder}/{path}:{line}"));
        }
    }
    Ok(rings_of(folder, &modules, &arrows))
}

type Arrows = BTreeMap<(Vec<String>, Vec<String>), String>;

fn module_of(path: &str) -> Vec<String> {
    let bare = path.strip_suffix(".rs").unwrap_or(path);
    let mut parts: Vec<String> = bare.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

/// Collects the paths that begin with `crate` or `super`, outside of tests, as modules and items.
fn collect_uses(tokens: TokenStream, module: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut is_test = false;
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                let text = group.stream().to_string().replace(' ', "");
                if group.delimiter() == Delimiter::Bracket && text == "cfg(test)" {
                    is_test = true;
                } else if group.delimiter() == Delimiter::Brace && is_test {
                    is_test = false;
                } else {
                    collect_uses(group.stream(), module, found);
                }
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => is_test = false,
            TokenTree::Ident(word) if !is_test && (word == "crate" || word == "super") => {
                let (rest, begin) = begin_of_path(&tokens[at..], module);
                if rest.len() + at < tokens.len() || word == "crate" {
                    read_path(rest, begin, found);
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// Reads `crate` or some `super::`, and returns what follows with the module that it begins in.
fn begin_of_path<'t>(tokens: &'t [TokenTree], module: &[String]) -> (&'t [TokenTree], Vec<String>) {
    let mut begin = module.to_vec();
    let mut rest = tokens;
    loop {
        match rest.first() {
            Some(TokenTree::Ident(word)) if word == "crate" => return (&rest[1..], Vec::new()),
            Some(TokenTree::Ident(word)) if word == "super" => {
                begin.pop();
                rest = &rest[1..];
            }
            _ => return (rest, begin),
        }
        match after_colons(rest) {
            Some(after) if matches!(after.first(), Some(TokenTree::Ident(w)) if w == "super") => {
                rest = after;
            }
            _ => return (rest, begin),
        }
    }
}

fn after_colons(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    match tokens {
        [TokenTree::Punct(a), TokenTree::Punct(b), rest @ ..]
            if a.as_char() == ':' && b.as_char() == ':' =>
        {
            Some(rest)
        }
        _ => None,
    }
}

/// Follows `::name::name` and `::{…}` from a module.
fn read_path(tokens: &[TokenTree], begin: Vec<String>, found: &mut Vec<(usize, Vec<String>)>) {
    let mut path = begin;
    let mut rest = tokens;
    let mut line = None;
    while let Some(after) = after_colons(rest) {
        match after.first() {
            Some(TokenTree::Ident(name)) => {
                line = line.or(Some(name.span().start().line));
                path.push(name.to_string());
                rest = &after[1..];
            }
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in inner.split(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ','))
                {
                    read_part(part, &path, found);
                }
                return;
            }
            _ => break,
        }
    }
    found.extend(line.map(|line| (line, path)));
}

fn read_part(part: &[TokenTree], path: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    if let Some(TokenTree::Ident(name)) = part.first() {
        let mut inner = path.to_vec();
        if name != "self" {
            inner.push(name.to_string());
        }
        found.push((name.span().start().line, inner.clone()));
        read_path(&part[1..], inner, found);
    }
}

fn rings_of(folder: &str, modules: &BTreeSet<Vec<String>>, arrows: &Arrows) -> Vec<Ring> {
    let mut reaches: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        reaches.entry(from).or_default().insert(to);
    }
    let all: Vec<&Vec<String>> = reaches.keys().copied().collect();
    for from in &all {
        let mut open: Vec<&Vec<String>> = reaches[from].iter().copied().collect();
        let mut seen: BTreeSet<&Vec<String>> = BTreeSet::new();
        while let Some(next) = open.pop() {
            if seen.insert(next) {
                open.extend(reaches.get(next).into_iter().flatten().copied());
            }
        }
        reaches.insert(from, seen);
    }
    let is_folder = |module: &[String]| {
        modules.iter().any(|other| other.len() > module.len() && other.starts_with(module))
    };
    let mut rings = Vec::new();
    let mut done: BTreeSet<&Vec<String>> = BTreeSet::new();
    for from in all.iter().copied() {
        if done.contains(from) || !reaches[from].contains(from) {
            continue;
        }
        let members: BTreeSet<&Vec<String>> = reaches[from]
            .iter()
            .copied()
            .filter(|to| reaches.get(to).is_some_and(|back| back.contains(from)))
            .collect();
        done.extend(members.iter().copied());
        if !members.iter().any(|module| is_folder(module)) {
            continue;
        }
        let inside = |module: &Vec<String>| members.contains(module);
        let imports = arrows.iter().filter(|((from, to), _)| inside(from) && inside(to));
        rings.push(Ring {
            source_folder: folder.to_owned(),
            modules: members.iter().map(|module| module.join("/")).collect(),
            imports: imports
                .map(|((from, to), place)| (from.join("/"), to.join("/"), place.clone()))
                .collect(),
        });
    }
    rings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(sources: &[(&str, &str)]) -> Vec<BTreeSet<String>> {
        let sources: Vec<_> =
            sources.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let found = find_in_sources("a/src", &sources).unwrap();
        found.into_iter().map(|ring| ring.modules).collect()
    }

    #[test]
    fn two_folders_that_use_each_other_are_a_ring() {
        let found = rings(&[
            ("lib.rs", "mod core; mod ports; mod store;"),
            ("core.rs", ""),
            ("core/jobs.rs", "use crate::ports::Port;"),
            ("ports.rs", "use crate::{store::{Row, rows}, other};"),
            ("store.rs", ""),
            ("store/rows.rs", "fn f() { super::super::core::jobs::g() }"),
        ]);

        assert_eq!(found, [["core", "ports", "store"].map(str::to_owned).into()]);
    }

    #[test]
    fn a_module_and_its_parts_may_use_each_other() {
        let found = rings(&[
            ("core.rs", "mod jobs; use jobs::Job;"),
            ("core/jobs.rs", "use super::Cluster; use crate::core::nodes::Node;"),
            ("core/nodes.rs", "use super::jobs::Job;"),
        ]);

        assert_eq!(found, [] as [BTreeSet<String>; 0]);
    }

    #[test]
    fn imports_of_tests_count_for_nothing() {
        let found = rings(&[
            ("core.rs", ""),
            ("core/jobs.rs", "use crate::store::Row;"),
            ("store.rs", "#[cfg(test)] mod tests { use crate::core::jobs::Job; }"),
        ]);

        assert_eq!(found, [] as [BTreeSet<String>; 0]);
    }
}
