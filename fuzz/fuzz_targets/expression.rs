#![no_main]

#[path = "../../crates/testkit/tests/fuzz/expression.rs"]
mod expression;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| expression::check(bytes));
