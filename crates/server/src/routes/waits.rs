//! Steps that wait for people or other systems: signals, approvals, resuming.

use super::runs::notes;
use super::workflows::idempotency_key;
use super::{answer, page_of_runs, run_id};
use crate::contract::{Carries, Param, ResponseShape, Route, get, params, post};
use crate::query::Query;
use crate::{Answer, Path, Refusal, State, body};
use api::{ApprovalView, Code, DecidedView, DecisionRequest, ResumeRunRequest, RunStatusView, SignalledView, rfc3339};
use axum::body::Body;
use axum::http::HeaderMap;
use engine::services::{DecisionRequest as Decision, Judged, OpenApproval, SignalRequest};
use kernel::Answer as Outcome;
use kernel::plan::{Decision as Verdict, is_signal_name};
use kernel::{RunId, RunStatus};
use serde_json::json;

/// Open approvals are listed by the run and the number of the step.
const AFTER: Param = Param::new(
    "cursor",
    "continue after the page that gave this",
    || json!({ "type": "string", "pattern": "^run_[0-9a-z]{26}:[0-9]{1,9}$" }),
);

pub fn routes() -> Vec<Route> {
    vec![
        post("/api/v1/runs/{run}/signals/{name}", signal, "signal_run", "Send a signal to a run")
            .carries(Carries::Payload)
            .idempotent()
            .answers::<SignalledView>(200, "the run has the signal, now or from an earlier request with this key")
            .refuses(&[Code::RunEnded, Code::TooManySignals, Code::InvalidParameter]),
        post("/api/v1/runs/{run}/approve", approve, "approve_run", "Approve a step that waits for an approval")
            .takes::<DecisionRequest>()
            .answers::<DecidedView>(200, "decided, now or earlier")
            .refuses(DECISION_CODES),
        post("/api/v1/runs/{run}/reject", reject, "reject_run", "Reject a step that waits for an approval")
            .takes::<DecisionRequest>()
            .answers::<DecidedView>(200, "decided, now or earlier")
            .refuses(DECISION_CODES),
        post("/api/v1/runs/{run}/resume", resume, "resume_run", "Resume a paused run, or a `pause` step of it")
            .may_take::<ResumeRunRequest>()
            .answers::<RunStatusView>(200, "nothing is paused")
            .refuses(&[Code::RunEnded, Code::NotWaiting, Code::StepRequired]),
        get(
            "/api/v1/approvals",
            approvals,
            "list_approvals",
            "List the approvals that wait for a decision, oldest first",
        )
        .query(&[params::LIMIT, AFTER])
        .shaped(200, "one page", ResponseShape::RunPage(|g| g.subschema_for::<ApprovalView>())),
    ]
}

const DECISION_CODES: &[Code] = &[
    Code::RunEnded,
    Code::NotWaiting,
    Code::StepRequired,
    Code::AlreadyDecided,
    Code::ApprovalChanged,
    Code::NotAnApprover,
];

pub async fn signal(app: State, Path((run, name)): Path<(String, String)>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let key = idempotency_key(&headers)?;
    if !is_signal_name(&name) {
        return Err(Refusal::new(Code::InvalidParameter, "this is not the name of a signal")
            .hint("a name begins with a letter and has up to 80 letters, digits, `_`, `-` and `.`")
            .at("name"));
    }
    let body = body::payload(&headers, body).await?;
    let request = SignalRequest { name: name.clone(), body, actor: String::new(), key };
    let (outcome, status) = app.engine.runs.signal(app.org(), id, request).await?;
    match outcome {
        Outcome::Full => Err(Refusal::new(Code::TooManySignals, "the run has 1,000 signals that no step has read")
            .hint("let the run read them first: `GET /runs/{run}/explain` says what it waits for")),
        Outcome::TooLarge => Err(Refusal::new(Code::TooLarge, "this signal would make the run larger than 16 MiB")),
        Outcome::Ended(ended) => Err(ended_already(ended)),
        outcome => Ok(answer(
            200,
            SignalledView {
                run_id: id.to_string(),
                name,
                status: status.as_str().into(),
                deduplicated: outcome == Outcome::Repeated,
            },
        )),
    }
}

pub async fn approve(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request: DecisionRequest = body::json(&headers, body).await?;
    let verdict = if request.approve == Some(false) { Verdict::Denied } else { Verdict::Approved };
    decide(app, &run, request, verdict).await
}

pub async fn reject(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request: DecisionRequest = body::json(&headers, body).await?;
    if request.approve == Some(true) {
        return Err(Refusal::new(Code::InvalidBody, "this request rejects").hint("send it to `approve`").at("approve"));
    }
    decide(app, &run, request, Verdict::Denied).await
}

async fn decide(app: State, run: &str, request: DecisionRequest, decision: Verdict) -> Answer {
    let id = run_id(run)?;
    let DecisionRequest { actor, step, token, comment, shown_hash, approve: _ } = request;
    let [actor, comment] = notes([("actor", actor), ("comment", comment)])?;
    if actor.trim().is_empty() {
        return Err(Refusal::new(Code::InvalidBody, "`actor` is missing")
            .hint("say who decides: {\"actor\": \"ada\"}")
            .at("actor"));
    }
    let request = Decision { decision, actor, comment, step, token, shown_hash };
    let Judged { answer: outcome, status, step } = app.engine.runs.decide(app.org(), id, request).await?;
    let step = step.unwrap_or_default();
    match outcome {
        Outcome::Applied | Outcome::Repeated => Ok(answer(
            200,
            DecidedView {
                id: id.to_string(),
                step,
                decision: decision.as_str().into(),
                status: status.as_str().into(),
                repeated: outcome == Outcome::Repeated,
            },
        )),
        Outcome::Conflict => Err(Refusal::new(Code::AlreadyDecided, format!("`{step}` was decided otherwise before"))
            .hint("the first decision counts")),
        Outcome::Forbidden => {
            Err(Refusal::new(Code::NotAnApprover, format!("this actor may not decide about `{step}`"))
                .hint("`GET /approvals` lists who may")
                .at("actor"))
        }
        Outcome::Ended(ended) => Err(ended_already(ended)),
        Outcome::TooLarge => Err(Refusal::new(Code::TooLarge, "this would make the run larger than 16 MiB")),
        _ => Err(Refusal::new(Code::NotWaiting, format!("`{step}` does not wait for an approval"))
            .hint("`GET /runs/{run}/explain` says what the run waits for")),
    }
}

pub async fn resume(app: State, Path(run): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let id = run_id(&run)?;
    let ResumeRunRequest { actor, step } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor] = notes([("actor", actor)])?;
    let judged = app.engine.runs.resume_any(app.org(), id, step.as_deref(), actor).await?;
    match judged.answer {
        Outcome::Applied | Outcome::Repeated => Ok(status_view(id, judged.status)),
        Outcome::Ended(ended) => Err(ended_already(ended)),
        _ => Err(Refusal::new(Code::NotWaiting, "this step does not wait to be resumed")
            .hint("`GET /runs/{run}/explain` says what the run waits for")
            .at("step")),
    }
}

fn status_view(run: RunId, status: RunStatus) -> axum::response::Response {
    answer(200, RunStatusView { id: run.to_string(), status: status.as_str().into() })
}

fn ended_already(status: RunStatus) -> Refusal {
    engine::Error::Ended(status).into()
}

pub async fn approvals(app: State, query: Query) -> Answer {
    let limit = query.limit()?;
    let after = query.read("cursor", "`next` of the previous page", |text| {
        let (run, step) = text.split_once(':')?;
        Some((RunId::parse(run)?, step.parse().ok()?))
    })?;
    let page = app.engine.runs.open_approvals(app.org(), after, limit).await?;
    let next = page.next.map(|(run, step)| format!("{run}:{step}"));
    Ok(page_of_runs(page.approvals.into_iter().map(view).collect(), next, &page.unreadable))
}

fn view(open: OpenApproval) -> ApprovalView {
    let OpenApproval { run, workflow, step, prompt, items, approvers, requested_at, deadline, token, shown_hash } =
        open;
    ApprovalView {
        run_id: run.to_string(),
        workflow,
        step,
        prompt,
        items,
        approvers,
        requested_at: requested_at.map(rfc3339),
        deadline: rfc3339(deadline),
        token,
        shown_hash,
    }
}
