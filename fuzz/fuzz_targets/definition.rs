#![no_main]

#[path = "../../crates/testkit/tests/fuzz/definition.rs"]
mod definition;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| definition::check(bytes));
