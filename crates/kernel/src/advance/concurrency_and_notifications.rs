//! The concurrency group of a run, and the notifications that its end causes. Both follow from the plan and the
//! run's origin, so only this file derives them.

use super::view::TriggerScope;
use crate::event::{ConcurrencyGroup, Origin};
use crate::plan::{Notify, Occasion, Plan};
use crate::run::Run;
use crate::status::RunStatus;
use crate::template::{self, Failure};

/// The concurrency group of a new run, if its workflow has one. The error says why the key cannot be filled in.
pub fn concurrency_group(plan: &Plan, origin: &Origin) -> Result<Option<ConcurrencyGroup>, String> {
    let Some(concurrency) = &plan.layout().concurrency else { return Ok(None) };
    let key = template::render_text(&concurrency.key, &TriggerScope::new(origin)).map_err(|failure| match failure {
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

/// The notifications to send for a run that has ended, in a fixed order. A run that was itself started by a
/// notification sends none: otherwise two workflows could start each other forever.
pub fn notifications(plan: &Plan, run: &Run) -> Vec<Notify> {
    let origin = &run.state.origin;
    if !run.is_terminal() || origin.caused_by.is_some() {
        return Vec::new();
    }
    let has_failed = matches!(run.status(), RunStatus::Failed | RunStatus::Timeout);
    let callback = Notify { on: Occasion::Ended, url: origin.callback_url.clone(), ..Default::default() };
    let callback = (!callback.url.is_empty()).then_some(callback);
    let configured = plan.layout().notify.iter().filter(|n| n.on == Occasion::Ended || has_failed).cloned();
    configured.chain(callback).collect()
}
