//! Any bytes as a record, a snapshot and a plan. Damage is an error, never a panic. A decoded value survives encoding
//! and decoding, and no history that can be decoded makes loading a run panic.

use kernel::event::Record;
use kernel::plan::{Layout, Plan};
use kernel::run::{Run, State};
use kernel::wire::{self, Message};
use std::sync::OnceLock;

/// A plan with a step of each kind, for histories that belong to some plan.
fn any_plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        let source = include_bytes!("../../../lang/tests/golden/plans/everything.yaml");
        let tree = lang::read(source, lang::Syntax::Yaml).expect("YAML");
        lang::compile(&tree).expect("a definition").plan
    })
}

fn decoded<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(&message.encode());
    assert_eq!(again.as_ref(), Ok(&message));
    Some(message)
}

pub fn check(bytes: &[u8]) {
    if let Some(layout) = decoded::<Layout>(bytes) {
        let _ = Plan::new(layout);
    }
    if let Some(record) = decoded::<Record>(bytes) {
        let _ = Run::load(any_plan(), None, &[Record { first: 1, ..record }.seal()]);
    }
    if let Some(state) = decoded::<State>(bytes) {
        let _ = Run::load(any_plan(), Some(&wire::seal(&state)), &[]);
    }
    let _ = Record::open(bytes);
    let _ = Plan::decode(bytes);
}
