//! The tables of `docs/benchmarks.md`: each row names the policy that ran and the commit that was measured.

use std::fmt;

/// A table or row that lacks a fact about its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FigureFinding {
    /// The line of the page.
    pub line: usize,
    /// What is missing.
    pub problem: &'static str,
}

impl fmt::Display for FigureFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "docs/benchmarks.md:{}: {}", self.line, self.problem)
    }
}

/// The first cells of tables that hold no figures.
const NO_FIGURES: [&str; 1] = ["part"];

/// Checks every table of a page of figures.
///
/// A table has a column `policy`, and either a column `commit` or headings that are commits. In these columns no cell
/// is empty, and a commit has seven hexadecimal digits.
pub fn check(page: &str) -> Vec<FigureFinding> {
    let mut findings = Vec::new();
    let mut header: Option<Vec<&str>> = None;
    for (at, line) in page.lines().enumerate() {
        let mut add = |problem| findings.push(FigureFinding { line: at + 1, problem });
        let Some(cells) = cells_of(line) else {
            header = None;
            continue;
        };
        let Some(names) = &header else {
            if !NO_FIGURES.contains(&cells[0]) {
                if !cells.contains(&"policy") {
                    add("the table has no column `policy`");
                }
                if !cells.iter().any(|name| *name == "commit" || is_commit(name)) {
                    add("the table has no column `commit`, and no heading is a commit");
                }
            }
            header = Some(cells);
            continue;
        };
        if cells.iter().all(|cell| cell.trim_matches(['-', ':']).is_empty()) {
            continue;
        }
        let cell = |name: &str| {
            let column = names.iter().position(|known| *known == name);
            column.map(|column| cells.get(column).copied().unwrap_or_default())
        };
        if cell("policy") == Some("") {
            add("the row names no policy (write – where none takes part)");
        }
        if cell("commit").is_some_and(|commit| !commit.split(", ").all(is_commit)) {
            add("the row names no commit of seven digits");
        }
    }
    findings
}

fn cells_of(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn is_commit(text: &str) -> bool {
    let digits = text.strip_prefix("commit ").unwrap_or(text);
    digits.len() == 7 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    fn problems(page: &str) -> Vec<(usize, &'static str)> {
        check(page).into_iter().map(|finding| (finding.line, finding.problem)).collect()
    }

    #[test]
    fn each_table_of_figures_names_policy_and_commit() {
        let root = files::repository();
        let page = files::read_file(&root, &root.join("docs/benchmarks.md")).unwrap();

        let findings: Vec<String> = check(&page.text).iter().map(ToString::to_string).collect();

        assert!(page.text.matches("\n|---").count() > 20, "the page has tables");
        assert_eq!(findings, [""; 0]);
    }

    #[test]
    fn each_record_of_figures_is_named_on_a_page() {
        let root = files::repository();
        let pages: String = files::read_files(&root, "docs", ".md")
            .unwrap()
            .into_iter()
            .map(|page| page.text)
            .collect();

        let records = files::read_files(&root, "load-tests/results", ".json").unwrap();
        for record in &records {
            let name = record.path.rsplit('/').next().unwrap();
            assert!(pages.contains(name), "no page names {name}");
        }
        assert!(!records.is_empty());
    }

    #[test]
    fn a_table_without_a_policy_and_a_row_without_a_commit_are_found() {
        let page = "| | measured | commit |\n|---|---|---|\n| a | 1 | 0123abc |\n\n\
                    | | measured | policy | commit |\n|---|---|---|---|\n| a | 1 | `tessera` | |\n\
                    | a | 1 | | 0123abc |\n\n| | 0123abc | policy |\n|---|---|---|\n| a | 1 | – |\n\n\
                    | part | what |\n|---|---|\n| 1 | all |\n";

        let found = problems(page);

        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 7, 8]);
    }
}
