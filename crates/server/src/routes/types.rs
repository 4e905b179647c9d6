//! Task types and the workers that claim them.

use super::runs::notes;
use super::{answer, page};
use crate::contract::{Param, Route, get, params, post, put};
use crate::error::problem_of;
use crate::query::Query;
use crate::views::tasks as views;
use crate::{Answer, Path, Refusal, State, body};
use api::{Code, PauseRequest, ResumeRequest, TypeLimits, TypeRate, TypeRequest, TypeView, WorkerView};
use axum::body::Body;
use axum::http::HeaderMap;
use engine::services::TypeChange;
use kernel::Span;
use serde_json::json;
use store::Rate;

const TEXT_MAX: usize = 200;
const DESCRIPTION_MAX: usize = 2_000;
const LIMIT_MAX: u32 = 1_000_000;
const RATE_MAX: u32 = 100_000;
const PER_MAX: Span = Span::from_days(30);

const PREFIX: Param = Param::new("prefix", "only types that start with this text", || json!({ "type": "string" }));

pub fn routes() -> Vec<Route> {
    vec![
        get("/api/v1/types", list, "list_types", "List task types, by name")
            .query(&[PREFIX])
            .pages::<TypeView>(params::NAME_CURSOR),
        get("/api/v1/types/{type}", show, "show_type", "Show a task type").answers::<TypeView>(200, "the type"),
        put("/api/v1/types/{type}", replace, "put_type", "Register or change a task type")
            .takes::<TypeRequest>()
            .answers::<TypeView>(200, "the type"),
        post(
            "/api/v1/types/{type}/pause",
            pause,
            "pause_type",
            "Pause a task type: no worker gets its tasks until it is resumed",
        )
        .may_take::<PauseRequest>()
        .answers::<TypeView>(200, "the type is paused, now or earlier"),
        post("/api/v1/types/{type}/resume", resume, "resume_type", "Resume a task type")
            .may_take::<ResumeRequest>()
            .answers::<TypeView>(200, "the type is not paused"),
        get("/api/v1/workers", workers, "list_workers", "List the workers seen in the last day")
            .query(&[params::LIMIT, params::NAME_CURSOR])
            .shaped(200, "one page", crate::contract::ResponseShape::Page(|g| g.subschema_for::<WorkerView>())),
    ]
}

async fn list(app: State, query: Query) -> Answer {
    let limit = query.limit()?;
    let prefix = query.get("prefix").unwrap_or_default();
    let mut types = app.engine.tasks.task_types(app.org(), prefix, query.get("cursor"), limit + 1).await?;
    let next = (types.len() > limit).then(|| types[limit - 1].row.name.clone());
    types.truncate(limit);
    Ok(page(types.iter().map(views::task_type).collect(), next))
}

async fn show(app: State, Path(name): Path<String>) -> Answer {
    let found = app.engine.tasks.task_type(app.org(), &name).await?;
    Ok(answer(200, views::task_type(&found.ok_or_else(|| Refusal::not_found("type", &name))?)))
}

async fn replace(app: State, Path(name): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let request: TypeRequest = body::json(&headers, body).await?;
    // Limits also hold for what the engine does itself.
    let is_own = name == lang::BASH_TYPE;
    if let Some(problem) = lang::task::check_type(&name).err().filter(|_| !is_own) {
        let problem = problem_of(&problem);
        let refusal = Refusal::new(Code::InvalidBody, problem.message).at("type");
        return Err(problem.hint.into_iter().fold(refusal, Refusal::hint));
    }
    let changed = app.engine.tasks.put_type(app.org(), &name, check_type_request(request)?).await?;
    Ok(answer(200, views::task_type(&changed)))
}

fn check_type_request(request: TypeRequest) -> Result<TypeChange, Refusal> {
    let invalid =
        |field: &str, expected: String| Refusal::new(Code::InvalidBody, format!("expected {expected}")).at(field);
    let is_text = |text: &str, max: usize| (1..=max).contains(&text.len());
    if let Some(Some(runtime)) = &request.runtime
        && (!is_text(runtime, TEXT_MAX) || runtime.chars().any(char::is_control))
    {
        return Err(invalid("runtime", format!("1 to {TEXT_MAX} bytes without control characters")));
    }
    if let Some(Some(description)) = &request.description
        && description.len() > DESCRIPTION_MAX
    {
        return Err(invalid("description", format!("at most {DESCRIPTION_MAX} bytes")));
    }
    let limits = request.concurrency.map(Option::unwrap_or_default);
    if let Some(TypeLimits { limit, per_key }) = &limits {
        for (field, value) in [("concurrency.limit", limit), ("concurrency.per_key", per_key)] {
            if value.is_some_and(|n| !(1..=LIMIT_MAX).contains(&n)) {
                return Err(invalid(field, format!("a number from 1 to {LIMIT_MAX}")));
            }
        }
    }
    let rate = match request.rate {
        None => None,
        Some(None) => Some(None),
        Some(Some(TypeRate { limit, per, per_key })) => {
            if !(1..=RATE_MAX).contains(&limit) {
                return Err(invalid("rate.limit", format!("a number from 1 to {RATE_MAX}")));
            }
            let per = body::span(&per).filter(|span| (Span::from_millis(1)..=PER_MAX).contains(span));
            let per = per.ok_or_else(|| invalid("rate.per", format!("a duration up to {PER_MAX}, such as `1m`")))?;
            Some(Some(Rate { limit, per, per_key }))
        }
    };
    Ok(TypeChange {
        runtime: request.runtime,
        description: request.description.map(|text| text.filter(|text| !text.is_empty())),
        enabled: request.enabled,
        limit: limits.as_ref().map(|limits| limits.limit),
        limit_per_key: limits.as_ref().map(|limits| limits.per_key),
        rate,
    })
}

async fn pause(app: State, Path(name): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let PauseRequest { actor, note } = body::json::<Option<_>>(&headers, body).await?.unwrap_or_default();
    let [actor, note] = notes([("actor", actor), ("note", note)])?;
    Ok(answer(200, views::task_type(&app.engine.tasks.pause_type(app.org(), &name, actor, note).await?)))
}

async fn resume(app: State, Path(name): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    body::json::<Option<ResumeRequest>>(&headers, body).await?;
    Ok(answer(200, views::task_type(&app.engine.tasks.resume_type(app.org(), &name).await?)))
}

async fn workers(app: State, query: Query) -> Answer {
    let limit = query.limit()?;
    let after = query.get("cursor").unwrap_or_default();
    let all = app.engine.tasks.workers(app.org()).await?;
    let mut views: Vec<WorkerView> =
        all.iter().filter(|(row, _)| row.id.as_str() > after).take(limit + 1).map(views::worker).collect();
    let next = (views.len() > limit).then(|| views[limit - 1].id.clone());
    views.truncate(limit);
    Ok(page(views, next))
}
