//! Any bytes as a definition, a test file or a request, in both syntaxes. The result is a value or problems, each with
//! a position inside the text. A plan and a canonical definition survive being written and read again.

use kernel::Plan;
use lang::{Diagnostic, Syntax, Tree};

pub fn check(bytes: &[u8]) {
    check_json(bytes);
    for syntax in [Syntax::Json, Syntax::Yaml] {
        match lang::read(bytes, syntax) {
            Err(malformed) => check_problems(&malformed.0, bytes),
            Ok(tree) => check_tree(&tree, bytes),
        }
    }
}

/// What is accepted here must also be JSON for everybody else.
fn check_json(bytes: &[u8]) {
    if lang::check_json(bytes).is_ok() {
        let value: serde_json::Value = serde_json::from_slice(bytes).expect("valid JSON");
        if let Some(request) = value.as_object() {
            let _ = lang::task::settings(request);
        }
    }
}

fn check_tree(tree: &Tree, bytes: &[u8]) {
    for refused in
        [lang::describe(tree).err(), lang::trigger::request(tree).err(), lang::suite::workflow_of(tree).err()]
    {
        refused.iter().for_each(|problems| check_problems(problems, bytes));
    }
    match lang::compile(tree) {
        Err(problems) => check_problems(&problems, bytes),
        Ok(compiled) => {
            let canonical = lang::canonical_json(tree);
            let again = lang::read(canonical.as_bytes(), Syntax::Json).expect("canonical JSON is JSON");
            assert_eq!(lang::canonical_json(&again), canonical);
            assert_eq!(lang::compile(&again).expect("the same definition").hash, compiled.hash);
            let again = Plan::decode(&compiled.plan.encode()).expect("a plan decodes");
            assert_eq!(again.layout(), compiled.plan.layout());
        }
    }
}

fn check_problems(problems: &[Diagnostic], bytes: &[u8]) {
    assert!(!problems.is_empty(), "what is refused has problems");
    for problem in problems {
        assert!(problem.span.start <= problem.span.end && problem.span.end <= bytes.len() + 1, "{problem:?}");
        assert!(problem.line >= 1 && problem.column >= 1 && !problem.message.is_empty());
        assert_ne!(problem.code, "internal", "{problem:?}");
    }
}
