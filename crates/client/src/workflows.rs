//! Workflows: what can be run, and starting it.

use crate::{Ask, Client, Result, segment};
use api::{
    DiffView, Page, PauseRequest, ResumeRequest, RunView, StartedView, ValidationView, VersionEntryView, WorkflowView,
};
use bytes::Bytes;
use reqwest::Method;
use serde_json::Value;

/// A definition as its author wrote it.
#[derive(Clone, Debug)]
pub enum Definition {
    Json(Bytes),
    Yaml(Bytes),
}

/// What a run is started with.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// JSON; without it, `trigger.body` is null.
    pub body: Option<Bytes>,
    pub labels: Vec<(String, String)>,
    pub idempotency_key: Option<String>,
}

impl Start {
    pub fn json(body: &[u8]) -> Start {
        Start { body: Some(Bytes::copy_from_slice(body)), ..Start::default() }
    }
}

impl Ask {
    pub(crate) fn definition(mut self, definition: &Definition) -> Ask {
        self.body = Some(match definition {
            Definition::Json(bytes) => ("application/json", bytes.clone()),
            Definition::Yaml(bytes) => ("application/yaml", bytes.clone()),
        });
        self
    }
}

impl Client {
    pub async fn workflows(&self, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<WorkflowView>> {
        self.page(Ask::get("/workflows".into()).query("limit", limit).query("cursor", cursor)).await
    }

    /// By id, name or slug, with its definition.
    pub async fn workflow(&self, workflow: &str) -> Result<WorkflowView> {
        self.data(Ask::get(format!("/workflows/{}", segment(workflow)))).await
    }

    pub async fn create_workflow(&self, definition: &Definition) -> Result<WorkflowView> {
        self.data(Ask::post("/workflows".into()).definition(definition)).await
    }

    /// A new version; runs in flight keep theirs.
    pub async fn replace_workflow(&self, workflow: &str, definition: &Definition) -> Result<WorkflowView> {
        self.data(Ask::new(Method::PUT, format!("/workflows/{}", segment(workflow))).definition(definition)).await
    }

    pub async fn delete_workflow(&self, workflow: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/workflows/{}", segment(workflow)))).await.map(drop)
    }

    pub async fn validate(&self, definition: &Definition) -> Result<ValidationView> {
        self.data(Ask::post("/workflows/validate".into()).definition(definition)).await
    }

    /// `enable` or `disable`.
    pub async fn switch_workflow(&self, workflow: &str, verb: &str) -> Result<WorkflowView> {
        self.data(Ask::post(format!("/workflows/{}/{verb}", segment(workflow)))).await
    }

    /// New runs wait for their turn until it is resumed.
    pub async fn pause_workflow(&self, workflow: &str, request: &PauseRequest) -> Result<WorkflowView> {
        self.data(Ask::post(format!("/workflows/{}/pause", segment(workflow))).json(request)).await
    }

    pub async fn resume_workflow(&self, workflow: &str, request: &ResumeRequest) -> Result<WorkflowView> {
        self.data(Ask::post(format!("/workflows/{}/resume", segment(workflow))).json(request)).await
    }

    /// Its versions, newest first.
    pub async fn workflow_history(
        &self,
        workflow: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<VersionEntryView>> {
        let ask = Ask::get(format!("/workflows/{}/history", segment(workflow)));
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn workflow_diff(&self, workflow: &str, from: Option<&str>, to: Option<&str>) -> Result<DiffView> {
        let ask = Ask::get(format!("/workflows/{}/diff", segment(workflow)));
        self.data(ask.query("from", from).query("to", to)).await
    }

    /// Answers once the run is durable.
    pub async fn trigger(&self, workflow: &str, start: &Start) -> Result<StartedView> {
        self.data(start_ask(workflow, start)).await
    }

    /// Answers when the run has ended, or with the run as it is after `wait` (such as `30s`, at most `60s`).
    pub async fn trigger_and_wait(&self, workflow: &str, start: &Start, wait: &str) -> Result<RunView> {
        self.data(start_ask(workflow, start).query("wait", Some(wait))).await
    }
}

fn start_ask(workflow: &str, start: &Start) -> Ask {
    let mut ask = Ask::post(format!("/workflows/{}/trigger", segment(workflow)));
    for (key, value) in &start.labels {
        ask = ask.query("label", Some(format!("{key}:{value}")));
    }
    ask.body = start.body.clone().map(|bytes| ("application/json", bytes));
    ask.header("idempotency-key", start.idempotency_key.as_deref())
}
