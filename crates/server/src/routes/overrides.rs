//! What operators decide about a step of an open run: skip it, give its result, let it run now.

use super::runs::notes;
use super::{answer, run_id};
use crate::contract::{Route, post};
use crate::{Answer, Path, Refusal, State, body};
use api::{Code, OverriddenView, OverrideRequest, ResultRequest};
use axum::body::Body;
use axum::http::HeaderMap;
use engine::services::Rehearsal;
use kernel::advance::StepOverride;
use kernel::event::Override;
use kernel::{Answer as Outcome, Payload};

const CODES: &[Code] = &[Code::RunEnded, Code::StepSettled, Code::TooLarge];

pub fn routes() -> Vec<Route> {
    vec![
        post("/api/v1/runs/{run}/steps/{step}/skip", skip, "skip_step", "Skip a step of an open run")
            .may_take::<OverrideRequest>()
            .answers::<OverriddenView>(200, "it is skipped, or what would follow")
            .refuses(CODES),
        post(
            "/api/v1/runs/{run}/steps/{step}/result",
            result,
            "set_step_result",
            "Give the result of a step of an open run",
        )
        .takes::<ResultRequest>()
        .answers::<OverriddenView>(200, "it has succeeded with this result, or what would follow")
        .refuses(CODES),
        post(
            "/api/v1/runs/{run}/steps/{step}/run-now",
            run_now,
            "run_step_now",
            "End the sleep of a step, or the time before its next attempt",
        )
        .may_take::<OverrideRequest>()
        .answers::<OverriddenView>(200, "it runs, or what would follow")
        .refuses(CODES),
    ]
}

async fn skip(app: State, path: Path<(String, String)>, headers: HeaderMap, body: Body) -> Answer {
    let request: OverrideRequest = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    decide(app, path, Override::Skip, request, None).await
}

async fn run_now(app: State, path: Path<(String, String)>, headers: HeaderMap, body: Body) -> Answer {
    let request: OverrideRequest = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    decide(app, path, Override::RunNow, request, None).await
}

async fn result(app: State, path: Path<(String, String)>, headers: HeaderMap, body: Body) -> Answer {
    let ResultRequest { result, actor, reason, dry_run } = body::json(&headers, body).await?;
    let body = Payload::json(result.to_string());
    decide(app, path, Override::Result, OverrideRequest { actor, reason, dry_run }, Some(body)).await
}

async fn decide(
    app: State,
    Path((run, step)): Path<(String, String)>,
    verb: Override,
    request: OverrideRequest,
    body: Option<Payload>,
) -> Answer {
    let id = run_id(&run)?;
    let OverrideRequest { actor, reason, dry_run } = request;
    let [actor, reason] = notes([("actor", actor), ("reason", reason)])?;
    let decision = StepOverride { verb, body, actor, reason };
    let view = |step: String| OverriddenView { run_id: id.to_string(), step, ..Default::default() };
    let (outcome, view) = if dry_run {
        let (outcome, rehearsal) = app.engine.runs.rehearse_override(app.org(), id, &step, decision).await?;
        let Rehearsal { would_run, would_repeat } = rehearsal;
        let (would_run, would_repeat) = (Some(would_run), Some(would_repeat));
        (outcome, OverriddenView { would_run, would_repeat, ..view(step.clone()) })
    } else {
        let (outcome, status) = app.engine.runs.override_step(app.org(), id, &step, decision).await?;
        (outcome, OverriddenView { status: Some(status.as_str().into()), ..view(step.clone()) })
    };
    match outcome {
        Outcome::Applied => Ok(answer(200, view)),
        Outcome::Ended(ended) => Err(engine::Error::Ended(ended).into()),
        Outcome::TooLarge => Err(Refusal::new(Code::TooLarge, "this result would make the run larger than 16 MiB")),
        Outcome::Conflict => {
            Err(Refusal::new(Code::StepSettled, format!("`{step}` neither sleeps nor waits for a retry"))
                .hint("a run that is paused starts no attempts: resume it first"))
        }
        Outcome::Unknown => Err(Refusal::new(Code::StepSettled, format!("`{step}` is an iteration"))
            .hint("decide about the steps inside of it, or about the loop")),
        _ => Err(Refusal::new(Code::StepSettled, format!("`{step}` has settled already"))
            .hint("`GET /runs/{run}/steps` shows how")),
    }
}
