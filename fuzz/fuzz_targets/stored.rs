#![no_main]

#[path = "../../crates/testkit/tests/fuzz/stored.rs"]
mod stored;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| stored::check(bytes));
