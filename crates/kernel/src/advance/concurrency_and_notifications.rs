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

/// Which notification of a run it is. A run that is retried ends more than once, and each end sends its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationNumber {
    /// The event with which the run ended. `None` for the first end of a run that an earlier release ended.
    pub end: Option<u64>,
    /// The place in the list of [`notifications`] of that end.
    pub index: u64,
}

impl NotificationNumber {
    const INDEX_BITS: u32 = 16;

    /// As it is stored. A run ends with its second event at the earliest, so the numbers of earlier releases, which count
    /// from 0, are no others.
    pub fn stored(end: u64, index: u64) -> u64 {
        end << Self::INDEX_BITS | index
    }

    pub fn read(stored: u64) -> NotificationNumber {
        let end = Some(stored >> Self::INDEX_BITS).filter(|end| *end > 0);
        NotificationNumber { end, index: stored & ((1 << Self::INDEX_BITS) - 1) }
    }
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
