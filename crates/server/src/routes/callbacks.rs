//! `POST /wh/{token}`: another system answers a waiting step. The body is stored as it is, whatever its type.

use super::answer;
use crate::contract::{Carries, Route, post};
use crate::{Answer, Path, Refusal, State, body};
use api::{Code, ReceivedView};
use axum::body::Body;
use kernel::Answer as Judged;

pub fn routes() -> Vec<Route> {
    vec![
        post("/wh/{token}", receive, "answer_wait", "Answer a waiting step")
            .one_write()
            .open()
            .carries(Carries::Bytes)
            .answers::<ReceivedView>(200, "the callback was accepted, now or earlier")
            .refuses(&[Code::CallbackConflict, Code::CallbackGone, Code::RunDamaged, Code::RunNeedsUpgrade]),
    ]
}

pub async fn receive(app: State, Path(token): Path<String>, body: Body) -> Answer {
    let bytes = body::collect(body, body::PAYLOAD_MAX).await?;
    let judged = app.engine.runs.callback(&token, bytes).await.map_err(|error| match error {
        engine::Error::NotFound(_) => Refusal::new(Code::NotFound, "this callback URL is not known"),
        other => other.into(),
    })?;
    match judged {
        Judged::Applied | Judged::Repeated => Ok(answer(200, ReceivedView { received: true })),
        Judged::Conflict => Err(Refusal::new(Code::CallbackConflict, "another payload was accepted before")
            .hint("a callback URL accepts one payload; only the identical one may be sent again")),
        Judged::TooLarge => Err(Refusal::new(Code::TooLarge, "this payload would make the run larger than 16 MiB")),
        Judged::Gone
        | Judged::Stale
        | Judged::Ended(_)
        | Judged::Unknown
        | Judged::Later
        | Judged::Full
        | Judged::Forbidden
        | Judged::Ambiguous
        | Judged::Unsafe
        | Judged::NoRoom => Err(Refusal::new(
            Code::CallbackGone,
            "no step waits for this callback now: the wait timed out, was skipped or cancelled, or the run has ended",
        )),
    }
}
