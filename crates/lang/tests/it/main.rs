//! Golden files: the diagnostics that users see, and the plans that are stored.
//!
//! `problems/<name>.{json,yaml}` produces `<name>.<syntax>.txt`. `plans/` has the hash and the stored plan in hex, for each lowering.
//! `examples/` has the definitions of the documentation, which must have no problems. Files are rewritten only with
//! `UPDATE_GOLDEN=1`. If a stored plan changes, the format has changed: old plans must stay readable.

mod cron;

use lang::{Compiled, LOWERING, Syntax, compile, read};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn golden(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|p| syntax(p).is_some()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths
}

fn syntax(path: &Path) -> Option<Syntax> {
    match path.extension()?.to_str()? {
        "json" => Some(Syntax::Json),
        "yaml" => Some(Syntax::Yaml),
        _ => None,
    }
}

/// Compiles a file; the problems are text, one per line.
fn compiled(path: &Path) -> Result<Compiled, String> {
    let lines = |found: Vec<lang::Diagnostic>| found.iter().map(|d| format!("{d}\n")).collect::<String>();
    let source = std::fs::read(path).unwrap();
    let tree = read(&source, syntax(path).unwrap()).map_err(|malformed| lines(malformed.0))?;
    compile(&tree).map_err(lines)
}

fn compare(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, expected, "{}", path.display());
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn diagnostics_match_the_golden_files() {
    for path in golden("problems") {
        let found = compiled(&path).err().unwrap_or_else(|| panic!("{} has no problems", path.display()));
        compare(&beside(&path, ".txt"), &found);
    }
}

#[test]
fn m7_the_plans_of_every_lowering_never_change() {
    for path in golden("plans") {
        let compiled = compiled(&path).unwrap_or_else(|problems| panic!("{}\n{problems}", path.display()));
        let (plan, hash) = (hex(&compiled.plan.encode()), hex(&compiled.hash));
        compare(&beside(&path, &format!(".{LOWERING}.hex")), &format!("sha256:{hash}\n{plan}\n"));
        // A definition that uses something new has no plans of earlier lowerings.
        for file in
            (0..=LOWERING).map(|lowering| beside(&path, &format!(".{lowering}.hex"))).filter(|file| file.exists())
        {
            let stored = std::fs::read_to_string(&file).unwrap();
            let (name, plan) = stored.trim_end().split_once('\n').unwrap();
            assert_eq!(name, format!("sha256:{hash}"), "{}", file.display());
            let decoded = kernel::Plan::decode(&unhex(plan)).unwrap();
            assert_eq!(hex(&decoded.encode()), plan, "{}", file.display());
        }
    }
}

#[test]
fn r1_the_examples_of_the_docs_compile_the_same_from_json_and_yaml() {
    let paths = golden("examples");
    let pairs: Vec<_> = paths.chunks(2).collect();
    assert_eq!(pairs.len(), 3);
    for pair in pairs {
        let [json, yaml] = pair else { panic!("{pair:?} is not a pair") };
        let [json, yaml] =
            [json, yaml].map(|path| compiled(path).unwrap_or_else(|p| panic!("{}\n{p}", path.display())));
        assert_eq!(json.hash, yaml.hash);
        assert_eq!(json.plan.layout(), yaml.plan.layout());
        assert_eq!(json.source, yaml.source);
    }
}

/// Random sequences of meaningful tokens always give a result and never a panic.
#[test]
fn t37_no_sequence_of_tokens_panics() {
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
        ": ",
        "\n",
        "  ",
        "\t",
        "|",
        ">",
        "&a ",
        "*a",
        "!t ",
        "!!",
        "%",
        "#",
        "---",
        "...",
        "\\",
        "\\u",
        "d800",
        "\u{feff}",
        "é",
        "\0",
        "0",
        "1",
        "-",
        "e",
        "012",
        ".5",
        "true",
        "null",
        "~",
        "<<",
        "name",
        "tasks",
        "a",
        "needs",
        "if",
        "url",
        "https://",
        "{{",
        "}}",
        "??",
        "trigger.body.x",
        "tasks.a.body",
        "sleep",
        "noop",
        "\r",
        "\u{85}",
        "\u{2028}",
        "name: x\ntasks:\n  a: ",
        "{\"name\":\"x\",\"tasks\":{\"a\":{",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..20_000 {
        let count = next(14) + 1;
        let source: String = (0..count).map(|_| TOKENS[next(TOKENS.len())]).collect();
        for syntax in [Syntax::Json, Syntax::Yaml] {
            if let Ok(tree) = read(source.as_bytes(), syntax)
                && let Err(problems) = compile(&tree)
            {
                assert!(problems.iter().all(|d| d.code != "internal"), "{source:?}: {problems:?}");
            }
        }
        let ours = lang::check_json(source.as_bytes()).is_ok();
        let theirs = serde_json::from_str::<serde_json::Value>(&source).is_ok();
        assert!(!ours || theirs, "accepted here only: {source:?}");
    }
}

/// Random steps, with fields of all kinds and values of all types, give a plan or problems with places.
#[test]
fn t37_no_list_of_random_steps_panics() {
    const TYPES: &[&str] = &["conditional", "parallel", "loop", "group", "set", "bash", "log", "approval", "noop", "x"];
    const FIELDS: &[&str] = &[
        "id",
        "outputVariable",
        "condition",
        "then",
        "else",
        "steps",
        "items",
        "while",
        "values",
        "command",
        "message",
        "prompt",
        "compensate",
        "allow_failure",
        "on_error",
        "maxConcurrency",
        "timeoutMs",
        "if",
        "output",
        "as",
    ];
    const TEXTS: &[&str] = &[
        "a",
        "b",
        "step",
        "step[0]",
        "variables.x",
        "outputs.a",
        "outputs.b.c > 1",
        "tasks.a.body",
        "{{outputs.a}}",
        "{{variables.x ?? tasks['step[0]'].status}}",
        "index < 3",
        "é",
    ];
    struct Dice(u64);
    impl Dice {
        fn below(&mut self, below: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % below
        }
        fn step(&mut self, depth: usize) -> serde_json::Value {
            let mut step = serde_json::Map::new();
            if self.below(12) > 0 {
                step.insert("type".into(), TYPES[self.below(TYPES.len())].into());
            }
            for _ in 0..self.below(5) {
                let field = FIELDS[self.below(FIELDS.len())];
                step.insert(field.into(), self.value(field, depth));
            }
            step.into()
        }
        fn value(&mut self, field: &str, depth: usize) -> serde_json::Value {
            match self.below(10) {
                0 => self.below(2_000).into(),
                1 => (self.below(2) == 0).into(),
                2 => serde_json::json!({ "variable": TEXTS[self.below(TEXTS.len())], "equals": self.below(2) }),
                _ if ["then", "else", "steps"].contains(&field) && depth < 3 => {
                    (0..self.below(4)).map(|_| self.step(depth + 1)).collect()
                }
                3 => self.step(depth + 2),
                _ => TEXTS[self.below(TEXTS.len())].into(),
            }
        }
    }
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut plans = 0;
    for _ in 0..10_000 {
        let steps: Vec<serde_json::Value> = (0..dice.below(4)).map(|_| dice.step(0)).collect();
        let source = serde_json::json!({ "name": "x", "steps": steps }).to_string();
        let tree = read(source.as_bytes(), Syntax::Json).unwrap();
        match compile(&tree) {
            Ok(compiled) => {
                plans += 1;
                let layout = compiled.plan.layout();
                let again = kernel::Plan::decode(&compiled.plan.encode()).unwrap();
                assert_eq!(again.layout(), layout, "{source}");
            }
            Err(problems) => assert!(problems.iter().all(|d| d.code != "internal"), "{source}: {problems:?}"),
        }
    }
    assert!(plans > 40, "only {plans} of them are valid");
}
