//! What stands around a run: the limit it shares with others, and who is told when it has ended. Both
//! follow from the plan and what the run was given, so they are worked out here and nowhere else.

use super::view::Given;
use crate::event::{ConcurrencyGroup, Origin};
use crate::plan::{Notify, Occasion, Plan};
use crate::run::Run;
use crate::status::RunStatus;
use crate::template::{self, Failure};

/// The limit a new run comes under; the message says why its key cannot be worked out.
pub fn concurrency_group(plan: &Plan, origin: &Origin) -> Result<Option<ConcurrencyGroup>, String> {
    let Some(concurrency) = &plan.layout().concurrency else { return Ok(None) };
    let key = template::render_text(&concurrency.key, &Given(origin)).map_err(|failure| match failure {
        Failure::Message(message) => message,
        Failure::Stored(_) => "the key cannot be read".to_owned(),
    })?;
    Ok(Some(ConcurrencyGroup {
        key,
        limit: concurrency.limit,
        on_conflict: concurrency.on_conflict,
        ..Default::default()
    }))
}

/// Who is to be told that this run has ended, in a fixed order. A run that was itself brought about by
/// another's end tells nobody, or two workflows could call each other for ever.
pub fn notifications(plan: &Plan, run: &Run) -> Vec<Notify> {
    let origin = &run.state.origin;
    if !run.is_terminal() || origin.caused_by.is_some() {
        return Vec::new();
    }
    let has_failed = matches!(run.status(), RunStatus::Failed | RunStatus::Timeout);
    let called = Notify { on: Occasion::Ended, url: origin.callback_url.clone(), ..Default::default() };
    let asked = (!called.url.is_empty()).then_some(called);
    let listed = plan.layout().notify.iter().filter(|n| n.on == Occasion::Ended || has_failed).cloned();
    listed.chain(asked).collect()
}
