//! Decodes any bytes as a record, a snapshot and a plan. Damage is an error, never a panic, and a decoded value
//! survives encoding and decoding.
#![no_main]

use kernel::event::Record;
use kernel::plan::{Layout, Plan};
use kernel::run::State;
use kernel::wire::Message;
use libfuzzer_sys::fuzz_target;

fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        assert_eq!(M::decode(&message.encode()), Ok(message));
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<Record>(bytes);
    check::<State>(bytes);
    if let Ok(layout) = Layout::decode(bytes) {
        let _ = Plan::new(layout);
    }
    let _ = Record::open(bytes);
    let _ = Plan::decode(bytes);
});
