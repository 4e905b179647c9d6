#![no_main]

#[path = "../../crates/testkit/tests/fuzz/template.rs"]
mod template;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| template::check(bytes));
