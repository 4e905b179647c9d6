//! `onward runs bulk`: one action for every run that a filter selects.

use super::super::workflows::WorkflowArgument;
use super::super::{CommandContext, Failure, Outcome, trigger};
use api::{ReplayVersion, RunBulkAction, RunBulkFilter, RunBulkRequest, RunBulkView};

#[derive(clap::Args)]
pub struct Arguments {
    action: Action,
    /// Only of this workflow: id, name or slug
    #[arg(long)]
    workflow: Option<String>,
    /// Only with this status, or one of several: failed,timeout
    #[arg(long)]
    status: Option<String>,
    /// Only with this label
    #[arg(long, value_name = "KEY=VALUE", value_parser = trigger::label)]
    label: Option<(String, String)>,
    /// Only those created at this time or later: 2026-11-15T09:00:00Z, or 1h for an hour ago
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those created before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Act on all runs: required when there is no filter
    #[arg(long)]
    all: bool,
    /// Of cancel: the runs undo first what they did
    #[arg(long)]
    compensate: bool,
    /// Of retry and replay: also what can be neither undone nor repeated
    #[arg(long)]
    allow_irreversible: bool,
    /// Of replay: use the current version of the workflow, not the one of each run
    #[arg(long)]
    latest: bool,
    /// Only print which runs would be changed
    #[arg(long)]
    dry_run: bool,
    /// Why, for the history
    #[arg(long, default_value_t)]
    reason: String,
    #[command(flatten)]
    by: WorkflowArgument,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Action {
    /// Cancel open runs
    Cancel,
    /// Go on with runs that failed or timed out
    Retry,
    /// Start a new run from the input of each that has ended
    Replay,
}

pub async fn run(asking: &CommandContext, arguments: Arguments) -> Outcome {
    let Arguments { action, workflow, status, label, since, until, all, .. } = arguments;
    let label = label.map(|(key, value)| format!("{key}:{value}"));
    let filter = RunBulkFilter { workflow, status, label, since, until };
    let fields = [&filter.workflow, &filter.status, &filter.label, &filter.since, &filter.until];
    if !all && fields.iter().all(|field| field.is_none()) {
        return Err(Failure::Usage("no filter: select runs with a flag such as `--status`, or use `--all`".into()));
    }
    let (action, past) = match action {
        Action::Cancel => (RunBulkAction::Cancel, "cancelled"),
        Action::Retry => (RunBulkAction::Retry, "retried"),
        Action::Replay => (RunBulkAction::Replay, "replayed"),
    };
    let mut request = RunBulkRequest {
        action,
        filter,
        dry_run: arguments.dry_run,
        compensate: arguments.compensate,
        allow_irreversible: arguments.allow_irreversible,
        version: arguments.latest.then_some(ReplayVersion::Latest),
        cursor: None,
        actor: arguments.by.actor,
        reason: arguments.reason,
    };
    let mut sum = RunBulkView::default();
    loop {
        let part = asking.client.change_runs(&request).await?;
        sum.matched += part.matched;
        sum.changed += part.changed;
        sum.runs.extend(part.runs);
        sum.started.extend(part.started);
        sum.refused.extend(part.refused);
        request.cursor = part.next;
        if request.cursor.is_none() {
            break;
        }
    }
    for refused in &sum.refused {
        asking.say(&format!("{} is left as it is: {}", refused.run_id, refused.message));
    }
    let is_refused = !sum.refused.is_empty();
    asking.print(&sum, |sum| match request.dry_run {
        true => {
            let ids: String = sum.runs.iter().map(|id| format!("{id}\n")).collect();
            format!("{ids}{} would be {past}", runs_of(sum.matched))
        }
        false => format!("{} {past}", runs_of(sum.changed)),
    })?;
    if is_refused { Err(Failure::No) } else { Ok(()) }
}

fn runs_of(count: usize) -> String {
    format!("{count} run{}", if count == 1 { "" } else { "s" })
}
