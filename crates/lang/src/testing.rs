//! Helpers for tests: definitions in, problems as text out, one per line.

use crate::{Compiled, Syntax, compile, read};

/// Compiles YAML (or JSON, which is a subset).
pub(crate) fn compiled(source: &str) -> Result<Compiled, String> {
    let lines = |found: Vec<crate::Diagnostic>| found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let tree = read(source.as_bytes(), Syntax::Yaml).map_err(|malformed| lines(malformed.0))?;
    compile(&tree).map_err(lines)
}

/// Compiles a definition that consists of steps only: `a: {noop: {}}`, one or more lines.
pub(crate) fn steps(source: &str) -> Result<Compiled, String> {
    let indented: Vec<String> = source.trim_matches('\n').lines().map(|line| format!("  {line}")).collect();
    compiled(&format!("name: test\ntasks:\n{}", indented.join("\n")))
}

/// Checks the problems of steps, without their positions.
pub(crate) fn check(source: &str, expected: &str) {
    let found = match steps(source) {
        Ok(_) => "ok".to_owned(),
        Err(text) => text.lines().map(|l| l.split_once(' ').map_or(l, |(_, l)| l)).collect::<Vec<_>>().join("\n"),
    };
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert_eq!(found, expected.join("\n"), "\n{source}");
}

/// Checks the codes of each step's problems, given as the fields of one step `s`.
pub(crate) fn check_step(cases: &[(&str, &str)]) {
    for (fields, expected) in cases {
        let found = match steps(&format!("s: {{{fields}}}")) {
            Ok(_) => "ok".to_owned(),
            Err(text) => {
                let brief = |l: &str| {
                    let l = l.split_once(' ').map_or(l, |(_, l)| l);
                    l.split_once(": ").map_or(l, |(l, _)| l).to_owned()
                };
                text.lines().map(brief).collect::<Vec<_>>().join(", ")
            }
        };
        assert_eq!(found, *expected, "{fields}: {:?}", steps(&format!("s: {{{fields}}}")).err());
    }
}
