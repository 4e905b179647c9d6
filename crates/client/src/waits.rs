//! Steps that wait for people or other systems: signals, approvals, resuming.

use crate::{Client, RequestBuilder, Result, segment};
use api::{ApprovalView, DecidedView, DecisionRequest, Page, ResumeRunRequest, RunStatusView, SignalledView};
use serde::Serialize;

impl Client {
    /// Sends a signal to a run. A signal that arrives before the run waits for it is kept. With `key`, a repeated
    /// request sends it only once.
    pub async fn signal(
        &self,
        run: &str,
        name: &str,
        payload: &impl Serialize,
        key: Option<&str>,
    ) -> Result<SignalledView> {
        let request = RequestBuilder::post(format!("/runs/{}/signals/{}", segment(run), segment(name)));
        self.data(request.header("idempotency-key", key).json(payload)).await
    }

    /// Approves a step that waits for an approval.
    pub async fn approve(&self, run: &str, request: &DecisionRequest) -> Result<DecidedView> {
        self.data(RequestBuilder::post(format!("/runs/{}/approve", segment(run))).json(request)).await
    }

    /// Rejects a step that waits for an approval.
    pub async fn reject(&self, run: &str, request: &DecisionRequest) -> Result<DecidedView> {
        self.data(RequestBuilder::post(format!("/runs/{}/reject", segment(run))).json(request)).await
    }

    /// Resumes a paused run, or a `pause` step of it.
    pub async fn resume(&self, run: &str, request: &ResumeRunRequest) -> Result<RunStatusView> {
        self.data(RequestBuilder::post(format!("/runs/{}/resume", segment(run))).json(request)).await
    }

    /// The approvals that wait for a decision, oldest run first.
    pub async fn approvals(&self, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<ApprovalView>> {
        self.page(RequestBuilder::get("/approvals".into()).query("limit", limit).query("cursor", cursor)).await
    }
}
