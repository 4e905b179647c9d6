// The worker that the suite in `sdks/conformance` tests. The README there says what each handler does.

use onward_client::worker::{Context, Error};
use onward_client::{Client, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Deserialize)]
struct Said {
    message: String,
}

#[derive(Deserialize)]
struct Typed {
    name: String,
    count: u32,
}

#[derive(Serialize)]
struct Label {
    label: String,
}

#[tokio::main]
async fn main() -> Result<(), onward_client::Error> {
    Worker::new(Client::from_env()?)
        .slots(4)
        .lease(Duration::from_secs(2))
        .drain(Duration::from_secs(3))
        .handle("conformance.echo.v1", |input: Value, _: Context| async move { Ok(input) })
        .handle("conformance.fail.v1", |said: Said, _: Context| async move {
            Err::<(), Error>(std::io::Error::other(said.message).into())
        })
        .handle("conformance.final.v1", |said: Said, _: Context| async move {
            Err::<(), Error>(Error::fail(said.message).code("card_declined"))
        })
        .handle("conformance.snooze.v1", |_: Value, context: Context| async move {
            if let Some(saved) = context.saved::<Value>() {
                return Ok(saved);
            }
            context.progress(&json!({ "snoozed": true }))?;
            Err(Error::snooze(Duration::from_secs(1)))
        })
        .handle("conformance.slow.v1", |input: Value, _: Context| async move {
            tokio::time::sleep(Duration::from_secs_f64(input["seconds"].as_f64().unwrap_or_default())).await;
            Ok(input)
        })
        .handle("conformance.progress.v1", |_: Value, context: Context| async move {
            if let Some(saved) = context.saved::<Value>() {
                return Ok(json!({ "resumed_from": saved, "attempt": context.attempt() }));
            }
            context.progress(&json!({ "page": 7 }))?;
            Err(Error::retry("interrupted at page 7"))
        })
        .handle("conformance.cancel.v1", |_: Value, context: Context| async move {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(3_600)) => Ok(()),
                () = context.cancelled() => Err(Error::retry("cancelled")),
            }
        })
        .handle("conformance.log.v1", |said: Said, context: Context| async move {
            context.log(said.message);
            Ok(())
        })
        .handle("conformance.typed.v1", |typed: Typed, _: Context| async move {
            Ok(Label { label: format!("{} × {}", typed.count, typed.name) })
        })
        .run()
        .await
}
