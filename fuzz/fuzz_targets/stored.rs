//! Any bytes as something stored: a record, a snapshot, a plan. Damage is an error, never a panic, and
//! what decodes encodes to something that decodes to the same.
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
