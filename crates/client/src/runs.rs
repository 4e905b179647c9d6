//! Runs: what runs and ran, and what can be done about it.

use crate::{Ask, Client, Events, Result, segment};
use api::{
    CancelRequest, EventView, ExplainView, Page, PauseRequest, ReplayRequest, ReplayVersion, ReplayedView,
    ResumeRequest, RetryRequest, RunStatusView, RunSummary, RunView, StepView,
};
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

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

    /// The run once it has ended, however it did; [`Error::Late`](crate::Error::Late) if it has not by then.
    pub async fn wait_for_run(&self, run: &str, timeout: Duration) -> Result<RunView> {
        let is_open = |view: &RunView| {
            let has_ended = matches!(&*view.status, "completed" | "failed" | "cancelled" | "timeout");
            (!has_ended).then(|| view.status.to_string())
        };
        self.wait(&format!("/runs/{}", segment(run)), run, timeout, is_open).await
    }

    /// Gives a run something it waits for, or may come to wait for.
    pub async fn signal(&self, run: &str, name: &str, payload: &impl Serialize) -> Result<Value> {
        self.data(Ask::post(format!("/runs/{}/signals/{}", segment(run), segment(name))).json(payload)).await
    }

    /// Why it, or one of its steps, is where it is, and what can be done.
    pub async fn explain(&self, run: &str, step: Option<&str>) -> Result<ExplainView> {
        self.data(Ask::get(format!("/runs/{}/explain", segment(run))).query("step", step)).await
    }

    pub async fn cancel(&self, run: &str, request: &CancelRequest) -> Result<RunStatusView> {
        self.data(Ask::post(format!("/runs/{}/cancel", segment(run))).json(request)).await
    }

    /// Nothing new is started in it until it is resumed.
    pub async fn pause(&self, run: &str, request: &PauseRequest) -> Result<RunStatusView> {
        self.data(Ask::post(format!("/runs/{}/pause", segment(run))).json(request)).await
    }

    pub async fn resume(&self, run: &str, request: &ResumeRequest) -> Result<RunStatusView> {
        self.data(Ask::post(format!("/runs/{}/resume", segment(run))).json(request)).await
    }

    /// Attempts that wait for their time are made at once.
    pub async fn retry(&self, run: &str, request: &RetryRequest) -> Result<RunStatusView> {
        self.data(Ask::post(format!("/runs/{}/retry", segment(run))).json(request)).await
    }

    /// Starts the same again: a new run with the same input, of the same version or the present one.
    pub async fn replay(&self, run: &str, version: ReplayVersion) -> Result<ReplayedView> {
        self.data(Ask::post(format!("/runs/{}/replay", segment(run))).json(&ReplayRequest { version })).await
    }

    /// Only one that has ended.
    pub async fn delete_run(&self, run: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/runs/{}", segment(run)))).await.map(drop)
    }
}
