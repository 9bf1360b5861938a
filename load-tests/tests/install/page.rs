//! The pages for operators: every Tessera command in them exists with its options, every link has a
//! target, and the setup of a second node is short.

use std::fs;
use std::path::Path;
use std::process::Command;

use tessera_load_tests::programs::programs;

use super::tools::{read, root, run};

/// Pages that answer operators' questions. Alerts have their own, with one section for each.
const PAGES: [&str; 5] =
    ["docs/install.md", "docs/alerts.md", "docs/logs.md", "docs/backup.md", "docs/upgrade.md"];
const OURS: [&str; 3] = ["tessera", "tessera-agent", "tessera-controller"];

/// Splits a line as a shell would, with quotes and nothing else.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the commands of a page, or of one section of it.
fn commands(page: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            found.push(command.to_owned());
        }
    }
    found
}

/// Returns the headings of the sections with commands; that of the page's beginning is empty.
fn sections_with_commands(page: &str) -> Vec<String> {
    let mut heading = "";
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(next) = line.strip_prefix("## ") {
            heading = next;
        } else if line == "```console" && !found.contains(&heading.to_owned()) {
            found.push(heading.to_owned());
        }
    }
    found
}

fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    section.split("\n## ").next().unwrap()
}

/// Reads all Rust files below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_page_about_security_names_exists() {
    let page = read("docs/security.md");
    let mut text = String::new();
    for folder in ["controller", "gpu-agent", "load-tests"] {
        sources(&root().join(folder), &mut text);
    }

    let named = section(&page, "How we know").split('`').skip(1).step_by(2);
    let (paths, names): (Vec<_>, Vec<_>) = named.partition(|name| name.contains('/'));

    assert!(names.len() > 20 && paths.len() > 5, "{names:?} {paths:?}");
    for path in paths {
        assert!(root().join(path).exists(), "{path}");
    }
    // Words without an underscore are no names of tests.
    for name in names.into_iter().filter(|name| name.contains('_')) {
        assert!(text.contains(&format!("fn {name}(")), "no test {name}");
    }
}

#[test]
fn every_command_of_ours_in_the_pages_for_operators_exists() {
    let mut found = 0;
    for page in PAGES {
        let all: Vec<_> = commands(&read(page)).iter().map(|line| words(line)).collect();
        let ours: Vec<_> = all
            .iter()
            .map(|words| match words[0].as_str() {
                "runuser" => &words[4..],
                _ => words.as_slice(),
            })
            .filter(|words| OURS.contains(&words[0].as_str()))
            .collect();
        found += ours.len();
        for words in ours {
            // Everything before the last word is read first, and unknown options are refused.
            let output = Command::new(programs().path(&words[0]))
                .args(&words[1..])
                .arg("--help")
                .output()
                .unwrap();

            let problem = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: {}: {problem}", words.join(" "));
        }
    }
    assert!(found > 30, "only {found} commands were found");
}

#[test]
fn each_question_of_operators_has_its_page_and_the_machines_follow_every_command_of_it() {
    let index = read("docs/install.md");
    let followed = read("packaging/test-systemd");

    for (question, page) in [
        ("Where are the logs?", "logs.md"),
        ("What do I back up?", "backup.md"),
        ("How do I upgrade?", "upgrade.md"),
        ("What wakes me at night?", "alerts.md"),
    ] {
        assert!(index.contains(&format!("| {question} | [{page}]({page}) |")), "{question}");
    }
    for page in ["install", "logs", "backup", "upgrade"] {
        for heading in sections_with_commands(&read(&format!("docs/{page}.md"))) {
            let name =
                if heading.is_empty() { page.to_owned() } else { format!("{page}/{heading}") };
            // On other machines than those of systemd: docker/test and packaging/ansible/test.
            if ["install/Packages", "install/Containers", "install/Ten nodes"]
                .contains(&name.as_str())
            {
                continue;
            }
            assert!(
                followed.contains(&format!("'{name}'")),
                "packaging/test-systemd does not follow {name}"
            );
        }
    }
}

#[test]
fn the_backup_has_every_file_that_makes_a_controller_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    run(Command::new(programs().path("tessera-controller")).args(["init", "--data"]).arg(&data));
    let page = read("docs/backup.md");
    let commands = commands(section(&page, "Back up"));
    let archive = commands.iter().find(|command| command.starts_with("tar ")).unwrap();
    let (_, files) = archive.split_once("var/lib/tessera/{").unwrap();
    let kept: Vec<_> = files.split_once('}').unwrap().0.split(',').collect();

    let mut made = 0;
    for entry in fs::read_dir(data).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(kept.contains(&name.as_str()), "the backup has no {name}: {archive}");
        made += 1;
    }
    assert_eq!(made, kept.len(), "{archive}");
}

#[test]
fn a_job_on_a_second_node_is_at_most_fifteen_commands_away() {
    let page = read("docs/install.md");
    let commands = commands(section(&page, "Several nodes"));

    assert!(commands.len() <= 15, "{} commands: {commands:#?}", commands.len());
    // Both nodes are set up, and the job runs on the second.
    for node in ["node-a", "node-b"] {
        let start = format!("ssh {node} systemctl start tessera-agent");
        assert!(commands.contains(&start), "{commands:#?}");
    }
    let submit = commands.iter().find(|command| command.starts_with("tessera submit")).unwrap();
    assert!(submit.contains("--nodelist node-b"), "{submit}");
}

#[test]
fn every_edit_of_a_settings_file_in_the_page_finds_its_line() {
    let page = read("docs/install.md");
    let mut edits = 0;
    for command in commands(&page) {
        let Some((_, rest)) = command.split_once("s/^#") else { continue };
        let key = rest.split(" = ").next().unwrap();
        let file = if command.contains("agent.toml") { "agent.toml" } else { "controller.toml" };
        let settings = read(&format!("packaging/etc/{file}"));
        let lines = settings.lines().filter(|line| line.starts_with(&format!("#{key} = ")));
        assert_eq!(lines.count(), 1, "{file}: {command}");
        edits += 1;
    }
    assert!(edits >= 4, "only {edits} edits were found");
}

#[test]
fn every_page_and_file_that_the_pages_link_to_exists() {
    for page in PAGES.into_iter().chain(["docs/tracing.md"]) {
        let text = read(page);
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => root().join(page),
                file => root().join("docs").join(file),
            };
            let linked = std::fs::read_to_string(&target)
                .unwrap_or_else(|error| panic!("{page} links to {link}: {error}"));
            let anchors = linked.lines().filter_map(|line| line.strip_prefix('#')).map(|heading| {
                let heading = heading.trim_start_matches('#').trim().to_lowercase();
                let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
                kept.collect::<String>().replace(' ', "-")
            });
            let found = anchor.is_empty() || anchors.into_iter().any(|known| known == anchor);
            assert!(found, "{page} links to {link}, and there is no such heading");
        }
    }
}
