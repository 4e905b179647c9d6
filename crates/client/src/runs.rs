//! Runs: what runs and ran, and what can be done about it.

use crate::{Ask, Client, Events, Result, segment};
use api::{CancelRequest, CancelledView, EventView, Page, RunSummary, RunView, StepView};
use reqwest::Method;
use serde_json::Value;

/// Which runs to list; everything is optional.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// One or several, as in `failed,timeout`.
    pub status: Option<String>,
    pub workflow: Option<String>,
    /// `key:value`
    pub label: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

impl Client {
    pub async fn runs(&self, query: &RunQuery) -> Result<Page<RunSummary>> {
        let RunQuery { status, workflow, label, since, until, limit, cursor } = query;
        let ask = Ask::get("/runs".into())
            .query("status", status.as_ref())
            .query("workflow", workflow.as_ref())
            .query("label", label.as_ref())
            .query("since", since.as_ref())
            .query("until", until.as_ref())
            .query("limit", limit.as_ref())
            .query("cursor", cursor.as_ref());
        self.page(ask).await
    }

    pub async fn run(&self, run: &str) -> Result<RunView> {
        self.data(Ask::get(format!("/runs/{}", segment(run)))).await
    }

    /// In declaration order.
    pub async fn steps(&self, run: &str) -> Result<Vec<StepView>> {
        Ok(self.page(Ask::get(format!("/runs/{}/steps", segment(run)))).await?.data)
    }

    /// The events after number `after`.
    pub async fn events(&self, run: &str, after: u64, limit: Option<u32>) -> Result<Page<EventView>> {
        let ask = Ask::get(format!("/runs/{}/events", segment(run)));
        self.page(ask.query("cursor", Some(after)).query("limit", limit)).await
    }

    /// Every event after number `after`, those to come included, until the run has ended.
    pub async fn follow(&self, run: &str, after: u64) -> Result<Events> {
        Events::open(self.clone(), format!("/runs/{}/stream", segment(run)), after).await
    }

    /// Why it is where it is, and what can be done.
    pub async fn explain(&self, run: &str) -> Result<Value> {
        self.data(Ask::get(format!("/runs/{}/explain", segment(run)))).await
    }

    pub async fn cancel(&self, run: &str, request: &CancelRequest) -> Result<CancelledView> {
        self.data(Ask::post(format!("/runs/{}/cancel", segment(run))).json(request)).await
    }

    /// `pause`, `resume`, `retry` or `replay`, with a body if there is something to say.
    pub async fn change_run(&self, run: &str, verb: &str, body: Option<&Value>) -> Result<Value> {
        let ask = Ask::post(format!("/runs/{}/{verb}", segment(run)));
        self.data(match body {
            Some(body) => ask.json(body),
            None => ask,
        })
        .await
    }

    /// Only one that has ended.
    pub async fn delete_run(&self, run: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/runs/{}", segment(run)))).await.map(drop)
    }
}
