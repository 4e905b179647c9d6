//! `ANY /webhooks/{path}`: other systems start runs. The signature authenticates them, so host, origin and media type
//! are not checked.

use super::answer;
use crate::contract::{Carries, Route, any};
use crate::{Answer, Path, Refusal, State, body, headers};
use api::{Code, DeliveredView};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::response::IntoResponse;
use engine::services::{Delivered, Effect};
use engine::triggers::webhook::WebhookRequest;

pub fn routes() -> Vec<Route> {
    vec![
        any("/webhooks/{*path}", receive, "deliver", "Deliver a webhook with the method that its trigger declares")
            .one_write()
            .open()
            .carries(Carries::Bytes)
            .answers::<DeliveredView>(202, "a run was started, or open runs got a signal")
            .answers::<DeliveredView>(200, "what an earlier delivery with the same id did")
            .refuses(&[
                Code::MethodNotAllowed,
                Code::SignatureMissing,
                Code::SignatureInvalid,
                Code::TimestampMissing,
                Code::TimestampOutOfWindow,
                Code::HeaderRequired,
                Code::DeliveryIdReused,
                Code::RunFull,
                Code::WorkflowDisabled,
                Code::RunDeleted,
                Code::ConcurrencyKeyUnresolved,
                Code::InvalidInput,
                Code::RunDamaged,
                Code::RunNeedsUpgrade,
            ]),
    ]
}

pub async fn receive(
    app: State,
    method: Method,
    uri: Uri,
    Path(path): Path<String>,
    given: HeaderMap,
    body: Body,
) -> Answer {
    let endpoint = app.engine.webhooks.endpoint(&path).await?.ok_or_else(unknown)?;
    if method.as_str() != endpoint.method() {
        let message = format!("this webhook takes {}, not {method}", endpoint.method());
        let mut response = Refusal::new(Code::MethodNotAllowed, message).into_response();
        if let Ok(allowed) = HeaderValue::from_str(endpoint.method()) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        return Ok(response);
    }
    let request = WebhookRequest {
        method: method.as_str().to_owned(),
        query: uri.query().unwrap_or_default().to_owned(),
        headers: headers::text(&given).collect(),
        kept: headers::kept(&given),
        body: body::collect(body, body::PAYLOAD_MAX).await?,
    };
    let delivered = app.engine.webhooks.deliver(&endpoint, &request).await.map_err(|error| match error {
        engine::Error::NotFound(_) => unknown(),
        engine::Error::KeyReused => {
            Refusal::new(Code::DeliveryIdReused, "this delivery id was used for a different request")
                .hint("a delivery that is sent again must be identical; a new one needs a new id")
        }
        other => other.into(),
    })?;
    let view = view(&delivered);
    Ok(answer(if view.deduplicated { 200 } else { 202 }, view))
}

pub(super) fn view(delivered: &Delivered) -> DeliveredView {
    let delivery_id = delivered.delivery.clone();
    match &delivered.effect {
        Effect::Started(started) => DeliveredView {
            run_id: Some(started.run.to_string()),
            delivery_id,
            status: Some(started.status.as_str().into()),
            signalled: None,
            deduplicated: started.deduplicated,
        },
        Effect::Signalled { runs, deduplicated } => DeliveredView {
            run_id: None,
            delivery_id,
            status: None,
            signalled: Some(*runs),
            deduplicated: *deduplicated,
        },
    }
}

fn unknown() -> Refusal {
    Refusal::new(Code::NotFound, "there is no webhook here")
}
