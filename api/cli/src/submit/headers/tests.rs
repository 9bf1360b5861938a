use proptest::prelude::*;
use tessera_model::Bytes;
use tessera_model::spec::GpuRequest;

use super::*;
use crate::span::TimeLimit;

fn read_lines(lines: &[&str]) -> Result<ScriptHeaders, BadHeader> {
    read("job.sh", &format!("#!/bin/bash\n{}\n", lines.join("\n")))
}

#[test]
fn a_usual_slurm_script_is_understood() {
    let headers = read_lines(&[
        "#SBATCH --job-name=train",
        "#SBATCH -t 1-00:00:00 -o out-%j.txt",
        "",
        "# a remark",
        "#SBATCH --gres=gpu:1g.5gb:1   # a small slice",
        "#SBATCH --nodes=1 --ntasks=1",
        "#SBATCH --array=0-9",
        "#SBATCH --no-requeue",
    ])
    .unwrap();

    assert_eq!(headers.warnings, [""; 0]);
    let options = headers.options;
    assert_eq!(options.job_name.as_deref(), Some("train"));
    assert_eq!(options.output.as_deref(), Some("out-%j.txt"));
    assert_eq!(options.time, Some(TimeLimit::Secs(86_400)));
    assert_eq!(options.gpu(), Ok(Some(GpuRequest::Profile("1g.5gb".parse().unwrap()))));
    assert_eq!(options.array.unwrap().range(), Some((0, 9)));
    assert!(options.no_requeue);
}

#[test]
fn our_lines_override_slurms_whichever_comes_first() {
    let headers = read_lines(&[
        "#TESSERA --vram 10G --job-name ours",
        "#SBATCH --gres=gpu:1 --job-name theirs --time 5",
    ])
    .unwrap();

    assert_eq!(headers.options.gpu(), Ok(Some(GpuRequest::Memory(Bytes::from_mib(10_240)))));
    assert_eq!(headers.options.job_name.as_deref(), Some("ours"));
    assert_eq!(headers.options.time, Some(TimeLimit::Secs(300)));
}

#[test]
fn lines_about_gpus_count_together() {
    let pair = read_lines(&["#SBATCH --gpus=4", "#SBATCH --gpus-per-task=1"]).unwrap().options;
    let whole = read_lines(&["#SBATCH --exclusive", "#SBATCH --gres=gpu:2"]).unwrap().options;
    let last = read_lines(&["#SBATCH --gres=gpu:2", "#SBATCH --gres=gpu:1"]).unwrap().options;

    assert_eq!(pair.gang().unwrap().map(|gang| gang.gpus_per_node), Some(4));
    assert!(pair.gpus_per_task.is_some() && whole.exclusive.is_some());
    assert_eq!(whole.gang().unwrap().map(|gang| gang.gpus_per_node), Some(2));
    assert_eq!(last.gang().unwrap(), None);
}

#[test]
fn headers_end_at_the_first_command() {
    let headers = read_lines(&["#SBATCH -J before", "  ", "echo hi", "#SBATCH -J after"]).unwrap();

    assert_eq!(headers.options.job_name.as_deref(), Some("before"));
}

#[test]
fn a_line_that_only_looks_like_a_header_is_a_comment() {
    let headers = read_lines(&["##SBATCH -J a", "#SBATCHED -J b", "# SBATCH -J c"]).unwrap();

    assert_eq!(headers, ScriptHeaders::default());
}

#[test]
fn options_without_effect_are_listed_with_their_line() {
    let headers = read_lines(&[
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --mem 16G -p gpu -A lab --mail-type=stage_out",
        "#SBATCH --priority=100000 --nice",
        "#SBATCH --wait",
    ])
    .unwrap();

    for expected in [
        "job.sh:3: --account has no effect",
        "job.sh:3: --mail-type=stage_out has no effect",
        "job.sh:4: --priority has no effect here",
    ] {
        assert!(headers.warnings.iter().any(|w| w.starts_with(expected)), "{expected}");
    }
    assert_eq!(headers.warnings.len(), 3, "{:?}", headers.warnings);
    assert!(headers.terminal.has("wait") && !headers.terminal.has("quiet"));
    let mem = "16G".parse().ok();
    let expected = JobOptions {
        mail_type: headers.options.mail_type.clone(),
        nice: Some(100),
        mem,
        cpus_per_task: Some(4),
        partition: Some("gpu".into()),
        ..JobOptions::default()
    };
    assert_eq!(headers.options, expected);
}

#[test]
fn a_script_may_keep_a_placeholder_for_its_users_address() {
    let headers =
        read_lines(&["#SBATCH --mail-type=ALL,", "#SBATCH --mail-user=<YourNetID>@example.org"]);
    let mut named = read_lines(&["#SBATCH --mail-type=all --mail-user=ada@example.org"]).unwrap();
    let headers = headers.unwrap();

    assert_eq!(headers.warnings.len(), 1);
    let warning = "job.sh:3: --mail-user=<YourNetID>@example.org has no effect";
    assert!(headers.warnings[0].starts_with(warning), "{:?}", headers.warnings);
    assert_eq!(named.options.mail_user.take().as_deref(), Some("ada@example.org"));
    assert_eq!(headers.options, named.options);
    let wrong = read_lines(&["#SBATCH --mail-type=sometimes"]).unwrap_err().to_string();
    assert!(wrong.contains("one of begin end fail"), "{wrong}");
}

#[test]
fn options_that_would_change_the_job_are_refused_with_their_line() {
    for (line, hint) in [
        ("#SBATCH --nodes=0", "how many nodes"),
        ("#SBATCH -N 4-1", "how many nodes"),
        ("#SBATCH -n 0", "0"),
        ("#SBATCH --dependency=soon:41", "afternotok"),
        ("#SBATCH --deadline=soon", "now+2hours"),
        ("#SBATCH --signal=FOO@60", "B:USR1@60"),
        ("#SBATCH --gres=gpu:999", "1 to 256"),
        ("#SBATCH --gres=shard:1", "--vram"),
        ("#SBATCH --array=1,3%0", "at a time"),
        ("#SBATCH --time=soon", "HH:MM:SS"),
        ("#SBATCH --no-such-thing", "--no-such-thing"),
        ("#SBATCH train", "train"),
        ("#SBATCH -J \"a b", "not closed"),
        ("#TESSERA --vram 10G --profile 1g.5gb", "in one way"),
        ("#TESSERA --requeue --no-requeue", "cannot be used with"),
    ] {
        let refused = read_lines(&["", line]).unwrap_err();

        assert_eq!(refused.line, 3, "{refused}");
        assert!(refused.to_string().contains(hint), "{line}: {refused}");
    }
}

#[test]
fn words_are_split_as_by_a_shell() {
    for (text, words) in [
        ("  -J 'a b'  -t 5", vec!["-J", "a b", "-t", "5"]),
        (r#"--x="a \"b\"" c\ d"#, vec![r#"--x=a "b""#, "c d"]),
        ("'' # rest", vec![""]),
        ("a#b", vec!["a#b"]),
        ("'a\\b'", vec!["a\\b"]),
        ("", vec![]),
    ] {
        assert_eq!(split(text).unwrap(), words, "{text:?}");
    }
}

proptest! {
    #[test]
    fn quoted_words_come_back_whole(words in proptest::collection::vec("[^'\\\\\n]{0,12}", 0..6)) {
        let line: String = words.iter().map(|word| format!("'{word}' ")).collect();

        prop_assert_eq!(split(&line).unwrap(), words);
    }

    #[test]
    fn no_script_makes_it_panic(lines in proptest::collection::vec("(#SBATCH|#TESSERA|) ?.{0,40}", 0..8)) {
        let _ = read("job.sh", &lines.join("\n"));
    }

    #[test]
    fn later_lines_override_earlier_ones(names in proptest::collection::vec("[a-z]{1,8}", 1..6)) {
        let lines: Vec<_> = names.iter().map(|name| format!("#SBATCH -J {name}")).collect();

        let headers = read("job.sh", &lines.join("\n")).unwrap();

        prop_assert_eq!(headers.options.job_name.as_ref(), names.last());
    }
}
