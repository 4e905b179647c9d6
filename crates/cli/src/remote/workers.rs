//! `onward workers`: lists workers and the types they claim.

use super::style::time;
use super::table::list;
use super::{Connection, PageOptions};
use api::WorkerView;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(flatten)]
    part: PageOptions,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, part } = arguments;
    super::run(connection, async |asking| {
        let client = &asking.client;
        let fetch = async |limit, cursor: Option<String>| client.workers(Some(limit), cursor.as_deref()).await;
        const HEADER: &[&str] = &["ID", "TYPES", "RUNTIME", "VERSION", "SLOTS", "LEASED", "LAST SEEN"];
        list(&asking, &part, HEADER, row, fetch).await
    })
}

fn row(worker: &WorkerView) -> Vec<String> {
    vec![
        worker.id.clone(),
        worker.types.join(", "),
        worker.runtime.clone().unwrap_or_default(),
        worker.version.clone().unwrap_or_default(),
        worker.slots.map(|slots| slots.to_string()).unwrap_or_default(),
        worker.leased.to_string(),
        time(&worker.last_seen),
    ]
}
