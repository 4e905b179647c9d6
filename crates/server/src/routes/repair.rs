//! What is done about runs that went wrong: retry, replay, fork, move to another version; one by one or many at once.

use super::runs::{expected_statuses, notes, status};
use super::workflows::{find_or_deleted, idempotency_key};
use super::{answer, run_id};
use crate::contract::{Route, post};
use crate::query::{LABEL, PAST, is_label, parse_past};
use crate::{Answer, Path, Refusal, State, body};
use api::{
    Code, DryRunView, ForkRequest, ForkedView, MoveRequest, MovedView, RefusedRunView, ReplayRequest, ReplayVersion,
    ReplayedView, RetryRequest, RunBulkAction, RunBulkRequest, RunBulkView, RunForkView, RunMoveView, RunRetryView,
    RunStatusView, rfc3339,
};
use axum::body::Body;
use axum::http::HeaderMap;
use engine::services::{ForkRun, MoveRun, Rehearsal, RetryRun, RunBulk, RunBulkDone, RunBulkOrder};
use engine::{Edition, Idempotency};
use kernel::RunId;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use store::RunFilter;

pub fn routes() -> Vec<Route> {
    vec![
        post("/api/v1/runs/{run}/replay", replay, "replay_run", "Start a new run from the input of this one")
            .may_take::<ReplayRequest>()
            .idempotent()
            .answers::<ReplayedView>(201, "the new run")
            .answers::<ReplayedView>(200, "the run that an earlier request with this key started")
            .refuses(&[
                Code::WorkflowDisabled,
                Code::RunDeleted,
                Code::ConcurrencyKeyUnresolved,
                Code::InvalidInput,
                Code::UnsafeReplay,
            ]),
        post(
            "/api/v1/runs/{run}/retry",
            retry,
            "retry_run",
            "Go on with a failed run, or retry the steps of an open one now",
        )
        .may_take::<RetryRequest>()
        .answers::<RunRetryView>(200, "the run goes on; with `dry_run`, which steps would run")
        .refuses(&[Code::RunEnded, Code::NothingToRetry, Code::UnsafeRetry])
        .refuses(&[Code::HasParent, Code::ConcurrencyLimit]),
        post("/api/v1/runs/{run}/fork", fork, "fork_run", "Start a new run with results of this one, from a step on")
            .takes::<ForkRequest>()
            .idempotent()
            .answers::<RunForkView>(201, "the new run")
            .answers::<RunForkView>(
                200,
                "with `dry_run`, which steps would run; or the run that an earlier request started",
            )
            .refuses(&[
                Code::RunNotEnded,
                Code::WorkflowDisabled,
                Code::RunDeleted,
                Code::ConcurrencyKeyUnresolved,
                Code::InvalidInput,
                Code::UnsafeReplay,
            ]),
        post("/api/v1/runs/{run}/move", move_run, "move_run", "Go on with another version of the workflow")
            .may_take::<MoveRequest>()
            .answers::<RunMoveView>(200, "the run has this version; with `dry_run`, which steps would run at once")
            .refuses(&[Code::RunEnded, Code::CannotMove]),
        post("/api/v1/runs/bulk", bulk, "change_runs", "Cancel, retry or replay every run that matches a filter")
            .takes::<RunBulkRequest>()
            .idempotent()
            .answers::<RunBulkView>(200, "how many runs, and the ids of the first")
            .refuses(&[Code::NotFound]),
    ]
}

async fn replay(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let key = idempotency_key(&headers)?;
    let ReplayRequest { version, allow_irreversible, actor } =
        body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor] = notes([("actor", actor)])?;
    let edition = edition(version);
    let fingerprint = || {
        let hash = Sha256::new().chain_update(b"replay\0").chain_update(id.0);
        hash.chain_update([edition as u8]).finalize().into()
    };
    let idempotency = key.map(|key| Idempotency { scope: None, key, fingerprint: fingerprint() });
    let started = app.engine.runs.replay(app.org(), id, edition, allow_irreversible, actor, idempotency).await?;
    let view = ReplayedView {
        run_id: started.run.to_string(),
        replayed_from: id.to_string(),
        workflow_id: started.workflow.to_string(),
        status: started.status.as_str().into(),
        started_at: rfc3339(started.started_at),
        deduplicated: started.deduplicated,
    };
    Ok(answer(if started.deduplicated { 200 } else { 201 }, view))
}

async fn retry(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let request = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let RetryRequest { actor, reason, step, from, allow_irreversible, dry_run } = request;
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let request = RetryRun { step, from, allow_irreversible, actor, reason };
    if dry_run {
        let Rehearsal { would_run, would_repeat } = app.engine.runs.plan_retry(app.org(), id, &request).await?;
        return Ok(answer(200, RunRetryView::Planned(DryRunView { would_run, would_repeat })));
    }
    let status = app.engine.runs.retry(app.org(), id, request).await?;
    Ok(answer(200, RunRetryView::Retried(RunStatusView { id: id.to_string(), status: status.as_str().into() })))
}

async fn fork(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let key = idempotency_key(&headers)?;
    let request: ForkRequest = body::json(&headers, body).await?;
    let fingerprint = || {
        let same = ForkRequest { actor: String::new(), reason: String::new(), ..request.clone() };
        let text = serde_json::to_vec(&same).unwrap_or_default();
        Sha256::new().chain_update(b"fork\0").chain_update(id.0).chain_update(text).finalize().into()
    };
    let idempotency = key.map(|key| Idempotency { scope: None, key, fingerprint: fingerprint() });
    let ForkRequest { from, input, results, allow_irreversible, dry_run, actor, reason } = request;
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let input = input.map(|input| input.to_string().into());
    let results: BTreeMap<_, _> = results.into_iter().map(|(key, body)| (key, body.to_string().into())).collect();
    let request = ForkRun { from, input, results, allow_irreversible, actor, reason };
    if dry_run {
        let Rehearsal { would_run, would_repeat } = app.engine.runs.plan_fork(app.org(), id, &request).await?;
        return Ok(answer(200, RunForkView::Planned(DryRunView { would_run, would_repeat })));
    }
    let started = app.engine.runs.fork(app.org(), id, request, idempotency).await?;
    let view = ForkedView {
        run_id: started.run.to_string(),
        forked_from: id.to_string(),
        workflow_id: started.workflow.to_string(),
        status: started.status.as_str().into(),
        started_at: rfc3339(started.started_at),
        deduplicated: started.deduplicated,
    };
    Ok(answer(if started.deduplicated { 200 } else { 201 }, RunForkView::Forked(view)))
}

async fn move_run(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let MoveRequest { version, dry_run, actor, reason } =
        body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let request = MoveRun { version, actor, reason };
    if dry_run {
        let Rehearsal { would_run, would_repeat } = app.engine.runs.plan_move(app.org(), id, &request).await?;
        return Ok(answer(200, RunMoveView::Planned(DryRunView { would_run, would_repeat })));
    }
    let (status, version) = app.engine.runs.move_run(app.org(), id, request).await?;
    let moved = MovedView { id: id.to_string(), status: status.as_str().into(), version };
    Ok(answer(200, RunMoveView::Moved(moved)))
}

async fn bulk(app: State, headers: HeaderMap, body: Body) -> Answer {
    let key = idempotency_key(&headers)?;
    let request: RunBulkRequest = body::json(&headers, body).await?;
    let RunBulkRequest { action, filter, dry_run, compensate, allow_irreversible, version, cursor, actor, reason } =
        request;
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let wrong = |field: &str, expected: &str| {
        Refusal::new(Code::InvalidBody, format!("expected {expected}")).at(field.to_owned())
    };
    let of_another_action = |field: &str, of: &str| {
        Refusal::new(Code::InvalidBody, format!("`{field}` has no meaning here: it belongs to {of}"))
            .at(field.to_owned())
    };
    if compensate && action != RunBulkAction::Cancel {
        return Err(of_another_action("compensate", "`cancel`"));
    }
    if allow_irreversible && action == RunBulkAction::Cancel {
        return Err(of_another_action("allow_irreversible", "`retry` and `replay`"));
    }
    if version.is_some() && action != RunBulkAction::Replay {
        return Err(of_another_action("version", "`replay`"));
    }
    if key.is_some() && action != RunBulkAction::Replay {
        return Err(Refusal::new(Code::InvalidHeader, "only a replay takes an idempotency key")
            .hint("to cancel or to retry a run a second time changes nothing more")
            .at("Idempotency-Key"));
    }
    let now = app.engine.now();
    let time = |field: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => parse_past(text, now).map(Some).ok_or_else(|| wrong(field, PAST)),
    };
    let words = filter.status.iter().flat_map(|list| list.split(','));
    let statuses = words.map(|word| status(word).ok_or_else(|| wrong("filter.status", &expected_statuses())));
    let label = filter.label.as_deref().map(|text| {
        let pair = text.split_once(':').filter(|(key, value)| is_label(key, value));
        pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| wrong("filter.label", LABEL))
    });
    let before = match &cursor {
        None => None,
        Some(text) => Some(RunId::parse(text).ok_or_else(|| wrong("cursor", "`next` of the answer before"))?),
    };
    let filter = RunFilter {
        statuses: statuses.collect::<Result<_, _>>()?,
        labels: label.transpose()?.into_iter().collect(),
        since: time("filter.since", &filter.since)?,
        until: time("filter.until", &filter.until)?,
        workflow: match &filter.workflow {
            None => None,
            Some(key) => Some(find_or_deleted(&app, key).await?.id),
        },
        before,
        ..RunFilter::default()
    };
    let action = match action {
        RunBulkAction::Cancel => RunBulk::Cancel { compensate },
        RunBulkAction::Retry => RunBulk::Retry { allow_irreversible },
        RunBulkAction::Replay => {
            RunBulk::Replay { edition: edition(version.unwrap_or_default()), allow_irreversible, key }
        }
    };
    let order = RunBulkOrder { action, is_dry: dry_run, actor, reason };
    let done = app.engine.runs.bulk(app.org(), order, filter).await?;
    let RunBulkDone { matched, changed, runs, started, refused, next } = done;
    let ids = |runs: Vec<RunId>| runs.iter().map(RunId::to_string).collect();
    let refused = refused.into_iter().map(|(run, error)| {
        let problem = Refusal::from(error).into_problem();
        RefusedRunView { run_id: run.to_string(), code: problem.code.into(), message: problem.message }
    });
    Ok(answer(
        200,
        RunBulkView {
            matched,
            changed,
            runs: ids(runs),
            started: ids(started),
            refused: refused.collect(),
            next: next.map(|run| run.to_string()),
        },
    ))
}

fn edition(version: ReplayVersion) -> Edition {
    match version {
        ReplayVersion::Pinned => Edition::Pinned,
        ReplayVersion::Latest => Edition::Latest,
    }
}
