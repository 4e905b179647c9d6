//! The list of features that work and of features that are planned. `cargo xtask docs` writes the README and
//! `docs/status.md` from it. Tests compare it with the code where they can: step kinds, forms, fields, commands, stores
//! and SDKs.

use State::{Planned, Works};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
pub struct Feature {
    pub area: &'static str,
    /// The feature in one line.
    pub what: &'static str,
    /// What `docs/status.md` says in addition.
    pub details: &'static str,
    /// The page below `docs/` that explains it.
    pub page: Option<&'static str>,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Works,
    Planned,
}

pub const STEP_KINDS: &str = "Step kinds";
pub const FORMS: &str = "Workflow forms";
pub const FIELDS: &str = "Definition fields";
pub const SDKS: &str = "SDKs";
pub const STORES: &str = "Stores";
pub const COMMANDS: &str = "Command line";

/// Names in backticks are identifiers. In the areas that have a constant above, they are exactly the names in the code.
pub const ALL: &[Feature] = &[
    works(
        "Workflows",
        "reference/graph.md",
        "graphs of steps in JSON or YAML, with conditions, templates, retries and failure paths",
        "every problem in a definition is reported at once, with its position, and warnings beside errors; a failure \
         that no step handled fails the run; a step that is skipped says why; \
         the body of every trigger is checked against a JSON Schema, if the workflow has one; \
         versions with a history and a diff; a run keeps the version it started with",
    ),
    works(
        FORMS,
        "reference/steps.md",
        "graphs (`tasks`), step lists (`steps`), and single tasks without a definition",
        "",
    ),
    works(
        STEP_KINDS,
        "reference/graph.md",
        "`http`, `task`, `sleep`, `wait_for_webhook`, `wait_for_signal`, `approval`, `pause`, `set`, `log`, `noop`, \
         `bash`, `tool`, `agent`, `agent_message`, `group`, `loop`, `conditional`, `parallel`, `subworkflow`",
        "",
    ),
    works(
        "Tasks",
        "guides/job-queue.md",
        "a durable job queue with priorities, delays, retries, idempotency keys and dead letters",
        "submit one task or up to 10,000 in a request; labels, callbacks; list, cancel, retry, delete and bulk \
         changes; a task whose worker died three times is set aside; a dead letter can be released",
    ),
    works(
        "Workers",
        "guides/workers.md",
        "claim tasks by type or prefix, with leases, heartbeats and saved progress",
        "long polling; complete, fail, snooze and log lines; reports and claims in one request; a worker that lost its \
         lease cannot report; an open claim receives cancellations",
    ),
    works(
        "Task types",
        "reference/workers.md",
        "limits on concurrency and rate, for a type and for each key; pause and disable",
        "the workers of a type and when each was last seen; what a waiting task waits for",
    ),
    works(
        SDKS,
        "guides/rust.md",
        "Rust (`crates/client`) and Python (`sdks/python`)",
        "a conformance suite for workers in any language (`sdks/conformance`)",
    ),
    works(
        "Triggers",
        "reference/triggers.md",
        "API requests, batches, schedules with time zones, signed webhooks",
        "each fire time of a schedule leads to exactly one run or one recorded skip; each webhook delivery to one run; \
         manual triggers; a delivery log with redelivery",
    ),
    works(
        "Flow control",
        "guides/concurrency.md",
        "`concurrency` keys, pause, resume, cancel; skip a step, give its result, end its wait",
        "a run that exceeds the limit waits, is skipped, or replaces the running one; runs and workflows can be paused",
    ),
    works(
        "Repair",
        "guides/repairing-runs.md",
        "retry a failed run in place, replay it, fork it from a step, move an open one to another version; many at once",
        "each says beforehand what would run and what that would repeat, and refuses to repeat what cannot be undone",
    ),
    works(
        "Undo",
        "guides/undo.md",
        "a run that cannot complete undoes its steps with `compensate`, the latest first",
        "also after a crash, a timeout, a denial, or a cancellation that asks for it; `recovery` shows the result",
    ),
    works(
        "History",
        "guides/following-runs.md",
        "a run as it was right after any of its events, and what changed between two of them",
        "events with the actor and the reason of every decision; attempts with their outcomes",
    ),
    works(
        "Explain",
        "reference/http-api.md#explain",
        "why a run or a step is in its state, the evidence, and which requests change that; what the open runs of a workflow wait for",
        "every cause of an open run, the most urgent first; chains lead through child runs to the root cause",
    ),
    works(
        "Event streams",
        "guides/following-runs.md",
        "the events of one run or of all runs, live",
        "a client resumes after the last event it has seen and misses none, also across restarts of the server",
    ),
    works(
        "Notifications",
        "guides/following-runs.md",
        "call a URL when a run ends; call a URL or start a workflow when it fails",
        "`callback_url` and `on_failure`; recorded in the same commit as the end of the run, and retried",
    ),
    works(
        "Outgoing HTTP",
        "reference/graph.md",
        "queries, forms, redirects, signatures",
        "a limit on concurrent requests for each organisation; a circuit breaker for hosts that are down",
    ),
    works(
        "Durability",
        "concepts.md",
        "every response is sent after its commit; runs survive `kill -9` at any time",
        "steps that were running are started again; ended runs are deleted after `--retention`; on SIGTERM a server \
         records what is in progress, starts nothing new and hands the rest over; when the disk is full or read-only \
         it answers 503 and recovers by itself; after an I/O error during a sync it exits with 74",
    ),
    works(
        STORES,
        "guides/several-nodes.md",
        "SQLite for one process, Postgres 15 or later for any number of nodes",
        "an in-memory store for tests",
    ),
    works(
        "Nodes",
        "guides/several-nodes.md",
        "several nodes share one Postgres; each serves requests for every run",
        "the other nodes take over from a lost node within seconds; `concurrency`, limits of task types and schedules \
         hold for all nodes together; a node that was cut off for too long discards its state and starts over; a \
         database that lost acknowledged commits is detected",
    ),
    works(
        "HTTP API",
        "reference/http-api.md",
        "every operation; an OpenAPI document that every response is tested against",
        "idempotency keys, `?wait=`, labels, cursors, health checks, Prometheus metrics",
    ),
    works(
        "Access",
        "reference/cli.md",
        "`dev` listens on loopback without a key; `serve` listens on any address and requires an admin key",
        "",
    ),
    works(
        COMMANDS,
        "reference/cli.md",
        "a server, a client for every operation, definitions without a server, tests for workflows, a check for stores",
        "`dev`, `serve`; `workflows`, `trigger`, `runs`, `approvals`, `triggers`, `tasks`, `types`, `workers`; `worker`, which runs a \
         shell command for each task; `run`, `resume`; `test`, `validate`, `verify`, `bench`, `openapi`, `completions`",
    ),
    works(
        "Dashboard",
        "dashboard.md",
        "runs, workflows and triggers in a browser, live",
        "the plan, timeline, steps and events of a run; a button for each action that `explain` offers",
    ),
    works("Clock", "guides/testing.md", "real, or virtual: a test moves it forward by weeks in a second", ""),
    works(
        "Documentation",
        "README.md",
        "tutorial, guides and reference; tests run every command in the tutorial, the guides and the README",
        "",
    ),
    planned(FORMS, "transitions (`transitions`), scripts (`script`)"),
    planned(STEP_KINDS, "`script`"),
    planned(FIELDS, "`secrets`"),
    planned("Workflows", "rollback to an earlier version, proposals"),
    planned(SDKS, "TypeScript (`sdks/typescript`), Go (`sdks/go`)"),
    planned("Access", "more than one key, organisations and their quotas"),
    planned("Outgoing HTTP", "rules for which addresses a step may call"),
    planned(STORES, "backups"),
    planned("Dashboard", "tasks and workers"),
];

const fn works(area: &'static str, page: &'static str, what: &'static str, details: &'static str) -> Feature {
    Feature { area, what, details, page: Some(page), state: Works }
}

const fn planned(area: &'static str, what: &'static str) -> Feature {
    Feature { area, what, details: "", page: None, state: Planned }
}

/// The names in backticks in one area.
pub fn names(area: &str, state: State) -> BTreeSet<&'static str> {
    let rows = ALL.iter().filter(|feature| feature.area == area && feature.state == state);
    rows.flat_map(|feature| [feature.what, feature.details])
        .flat_map(|text| text.split('`').skip(1).step_by(2))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_has_one_row_for_each_state_and_no_name_in_both() {
        for (i, feature) in ALL.iter().enumerate() {
            let duplicate = ALL[..i].iter().find(|other| other.area == feature.area && other.state == feature.state);
            assert!(duplicate.is_none(), "{} has two rows", feature.area);
            let both = names(feature.area, Works).intersection(&names(feature.area, Planned)).count();
            assert_eq!(both, 0, "{}", feature.area);
        }
    }

    #[test]
    fn names_are_the_words_in_backticks() {
        assert_eq!(names(SDKS, Planned), BTreeSet::from(["sdks/go", "sdks/typescript"]));
        assert_eq!(names("Clock", Planned), BTreeSet::new());
    }
}
