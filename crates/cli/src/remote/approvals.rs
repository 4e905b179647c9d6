//! `onward approvals`: lists the approvals that wait for a decision.

use super::style::{cut, time};
use super::table::list;
use super::{Connection, PageOptions};
use api::ApprovalView;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the approvals that wait for a decision, oldest run first
    List {
        #[command(flatten)]
        part: PageOptions,
    },
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { connection, verb: Verb::List { part } } = arguments;
    super::run(connection, async |asking| {
        let client = &asking.client;
        let fetch = async |limit, cursor: Option<String>| client.approvals(Some(limit), cursor.as_deref()).await;
        const HEADER: &[&str] = &["RUN", "WORKFLOW", "STEP", "UNTIL", "APPROVERS", "PROMPT"];
        list(&asking, &part, HEADER, row, fetch).await
    })
}

fn row(approval: &ApprovalView) -> Vec<String> {
    vec![
        approval.run_id.clone(),
        approval.workflow.clone(),
        approval.step.clone(),
        time(&approval.deadline),
        approval.approvers.join(", "),
        cut(&approval.prompt, 80),
    ]
}
