//! Mutated inputs for every parser of what strangers or a disk may hand to us. No input makes one panic, hang or use
//! much memory; what else each holds is in the file of its target. The libFuzzer targets in `fuzz/` check the same.
//!
//! Input `n` of a target is always the same bytes: some of the corpus, changed as the seed `n` says. A failure names
//! `n`, and `ONWARD_FUZZ_INPUT=n` checks that one alone. `ONWARD_FUZZ=1000000` checks more of them.

mod cron;
mod definition;
mod expression;
mod mutation;
mod stored;
mod template;

use mutation::mutated;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use testkit::number_from_env;
use testkit::rng::Rng;

const INPUTS: u64 = 20_000;
/// Far more than any input takes, also on a busy machine.
const HANG: Duration = Duration::from_secs(60);
const INPUT_MAX: usize = 8_192;
const MEMORY_MAX_KIB: u64 = 1 << 20;

fn fuzz(target: &'static str, corpus: Vec<Vec<u8>>, tokens: &'static [&'static str], check: fn(&[u8])) {
    let one = std::env::var("ONWARD_FUZZ_INPUT").ok().map(|text| text.parse().expect("ONWARD_FUZZ_INPUT"));
    let range = one.map_or(0..number_from_env("ONWARD_FUZZ", INPUTS), |one| one..one + 1);
    let started = Instant::now();
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || {
        for number in range {
            let input = mutated(&mut Rng::new(number), &corpus, tokens, INPUT_MAX);
            let is_fine = catch_unwind(|| check(&input)).is_ok();
            let failed = (!is_fine).then(|| String::from_utf8_lossy(&input).into_owned());
            if send.send((number, failed)).is_err() {
                return;
            }
        }
    });
    let mut checked = 0;
    loop {
        match done.recv_timeout(HANG) {
            Ok((number, Some(input))) => panic!("input {number} of `{target}`: {input:?}"),
            Ok((_, None)) => checked += 1,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                panic!("an input of `{target}` after {checked} others takes {HANG:?}")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    println!("{target}: {checked} inputs, {:.1} s", started.elapsed().as_secs_f64());
    assert!(peak_memory_kib() < MEMORY_MAX_KIB, "`{target}` used {} KiB", peak_memory_kib());
}

/// The most memory that this process has used; 0 where the system does not say.
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The contents of files with one of these endings.
fn files(folders: &[&str], endings: &[&str]) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).expect("a folder"));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.retain(|path| endings.iter().any(|ending| path.extension().is_some_and(|found| found == *ending)));
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// The bytes in the last lines of a golden file that are hexadecimal.
fn unhex(file: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(file).expect("text");
    let digits: String = text.lines().filter(|line| !line.starts_with("sha256:")).collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

fn lines(text: &str) -> Vec<Vec<u8>> {
    text.lines().map(|line| line.as_bytes().to_vec()).collect()
}

#[test]
fn t37_definitions() {
    const TOKENS: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "'",
        "- ",
        "? ",
        "\n",
        "  ",
        "\t",
        "|\n",
        ">-\n",
        "&a ",
        "*a",
        "!t ",
        "!!str ",
        "%YAML",
        "#",
        "---\n",
        "...",
        "\\",
        "\\u",
        "\\ud800",
        "\u{feff}",
        "é",
        "\0",
        "\r",
        "\u{85}",
        "\u{2028}",
        "<<: ",
        "012",
        ".5",
        "1e999",
        "-0",
        "9007199254740993",
        "18446744073709551616",
        "true",
        "null",
        "~",
        "{{",
        "}}",
        "{{trigger.body.x}}",
        "{{tasks.a.body}}",
        "needs",
        "if",
        "tasks",
        "name",
        "trigger",
        "cron",
        "timezone",
        "webhook",
        "sleep",
        "wait_for_webhook",
        "log",
        "noop",
        "set",
        "task",
        "retry",
        "timeout",
        "concurrency",
        "url",
        "\"a\": ",
        "max_attempts",
        "on_failure",
        "allow_failure",
        "labels",
        "input",
        "13d",
        "-1s",
        "https://",
    ];
    let folders = [
        "examples",
        "crates/lang/tests/golden/plans",
        "crates/lang/tests/golden/problems",
        "crates/lang/tests/golden/examples",
    ];
    fuzz("definition", files(&folders, &["json", "yaml"]), TOKENS, definition::check);
}

#[test]
fn t37_expressions() {
    const TOKENS: &[&str] = &[
        "(",
        ")",
        "!",
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "&&",
        "||",
        "'",
        "\"",
        "\\",
        "true",
        "false",
        "null",
        "7",
        "-1",
        "1e400",
        "0.1",
        ".",
        "[0]",
        "[",
        "]",
        "tasks.a.status",
        "trigger.body.n",
        "é",
        "\u{2028}",
        " ",
        "in",
        "not",
    ];
    let corpus = lines(
        "tasks.a.status_code == 200\n(tasks.a.body.n >= 7 && !(trigger.body.s == 'paid')) || tasks.b.status != \"skipped\"\n\
         trigger.body.list[0].k == 1\n200 == tasks.a.status_code\ntasks.a.body.z == null\ntrue",
    );
    fuzz("expression", corpus, TOKENS, expression::check);
}

#[test]
fn t37_templates() {
    const TOKENS: &[&str] = &[
        "{{",
        "}}",
        "{",
        "}",
        "\0",
        "\r\n",
        "é",
        "%2f",
        "?",
        "#",
        "/",
        "\\",
        "@",
        ":",
        "[0]",
        ".",
        " ",
        "trigger.body.x",
        "tasks.a.body",
        "wait.a.url",
        "https://h/",
        "{{trigger.body.id}}",
        "\u{2028}",
    ];
    let corpus = lines(
        "https://h/{{trigger.body.t}}/y?q={{tasks.a.body.n}}\0a/b?c\nid-{{ trigger.body.id }}\0{{x}}\n{{trigger.body.o.k[1]}}\n\
         {{trigger.headers.x-a}}\0b\nplain",
    );
    fuzz("template", corpus, TOKENS, template::check);
}

#[test]
fn t37_schedules() {
    const TOKENS: &[&str] =
        &["*", "*/", "-", ",", "/", " ", "\t", "0", "7", "59", "60", "31", "sun", "FEB", "@daily", "é"];
    let corpus = lines("*/15 * * * *\n0 9 * * 1-5\n10-20/5 0,12 1-31/2 jan-dec sun\n0 0 29 2 */3\n5 4 31 1,3 7");
    fuzz("cron", corpus, TOKENS, cron::check);
}

#[test]
fn t37_stored_rows() {
    let folders = ["crates/kernel/tests/golden", "crates/lang/tests/golden/plans"];
    let sealed = files(&folders, &["hex"]).iter().map(|file| unhex(file)).collect::<Vec<_>>();
    // Also without format number and checksum, so that mutations reach the decoder.
    let corpus = sealed.iter().flat_map(|row| [row.clone(), row[5..].to_vec()]).collect();
    fuzz("stored", corpus, &["\0", "\u{1}", "\u{8}", "\u{a}", "\u{12}", "\u{7f}"], stored::check);
}
