//! Which steps the cases of a definition never ran, and which conditions were never false.

use super::files::LoadedSuite;
use super::play::Story;
use engine::services::StoredEvent;
use kernel::{Event, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Default)]
pub struct Coverage {
    pub definitions: BTreeMap<PathBuf, Covered>,
}

#[derive(Default)]
pub struct Covered {
    pub steps: usize,
    /// Names, in the order of the definition.
    pub never_ran: Vec<String>,
    /// Steps with a condition that were skipped in no case.
    pub never_skipped: Vec<String>,
    ran: BTreeSet<u32>,
    skipped: BTreeSet<u32>,
}

impl Coverage {
    pub fn add(&mut self, loaded: &LoadedSuite, story: Option<&Story>) {
        let covered = self.definitions.entry(loaded.definition.clone()).or_default();
        if let Some(story) = story {
            let node = |stored: &StoredEvent| Some(stored.place(stored.event.step()?).node);
            covered.ran.extend(story.began().into_iter().filter_map(node));
            let skipped = story.events.iter().filter(|stored| matches!(stored.event, Event::Skipped { .. }));
            covered.skipped.extend(skipped.filter_map(node));
        }
        covered.count(&loaded.compiled.plan);
    }
}

impl Covered {
    fn count(&mut self, plan: &Plan) {
        let steps = || plan.nodes().iter().zip(0u32..);
        let names = |keep: &dyn Fn(u32, bool) -> bool| -> Vec<String> {
            let kept = steps().filter(|(node, step)| keep(*step, node.guard.is_some()));
            kept.map(|(node, _)| node.key.clone()).collect()
        };
        self.steps = plan.nodes().len();
        self.never_ran = names(&|step, _| !self.ran.contains(&step));
        self.never_skipped = names(&|step, has_condition| has_condition && !self.skipped.contains(&step));
    }
}
