#![no_main]

#[path = "../../crates/testkit/tests/fuzz/cron.rs"]
mod cron;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cron::check(bytes));
