//! Parses any bytes as a definition, in both syntaxes. The result is a plan or problems, each with a position inside
//! the text. A plan must survive encoding and decoding.
#![no_main]

use kernel::Plan;
use lang::Syntax;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = lang::check_json(bytes);
    for syntax in [Syntax::Json, Syntax::Yaml] {
        let problems = match lang::read(bytes, syntax) {
            Err(malformed) => malformed.0,
            Ok(tree) => match lang::compile(&tree) {
                Err(problems) => problems,
                Ok(compiled) => {
                    let again = Plan::decode(&compiled.plan.encode()).expect("a plan decodes");
                    assert_eq!(again.layout(), compiled.plan.layout());
                    continue;
                }
            },
        };
        assert!(!problems.is_empty(), "a refused definition has problems");
        for problem in problems {
            assert!(problem.span.start <= problem.span.end && problem.span.end <= bytes.len() + 1, "{problem:?}");
            assert!(problem.line >= 1 && problem.column >= 1 && !problem.message.is_empty());
        }
    }
});
