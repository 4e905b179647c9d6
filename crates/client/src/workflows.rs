//! Workflows: create, validate, change, pause, compare versions, start runs.

use crate::{Client, RequestBuilder, Result, segment};
use api::{
    DiffView, Page, PauseRequest, ResumeRequest, RunView, StartedView, ValidationView, VersionEntryView, WorkflowView,
};
use bytes::Bytes;
use reqwest::Method;
use serde_json::Value;

/// The text of a definition.
#[derive(Clone, Debug)]
pub enum Definition {
    Json(Bytes),
    Yaml(Bytes),
}

/// The input and the settings of a new run.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The `trigger.body` of the run, as JSON; by default `null`.
    pub body: Option<Bytes>,
    pub labels: Vec<(String, String)>,
    pub idempotency_key: Option<String>,
    /// The person or program that starts the run.
    pub actor: Option<String>,
}

impl Start {
    pub fn json(body: &[u8]) -> Start {
        Start { body: Some(Bytes::copy_from_slice(body)), ..Start::default() }
    }
}

impl RequestBuilder {
    pub(crate) fn definition(mut self, definition: &Definition) -> RequestBuilder {
        self.body = Some(match definition {
            Definition::Json(bytes) => ("application/json", bytes.clone()),
            Definition::Yaml(bytes) => ("application/yaml", bytes.clone()),
        });
        self
    }
}

impl Client {
    pub async fn workflows(&self, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<WorkflowView>> {
        self.page(RequestBuilder::get("/workflows".into()).query("limit", limit).query("cursor", cursor)).await
    }

    /// A workflow by id, name or slug, with its definition.
    pub async fn workflow(&self, workflow: &str) -> Result<WorkflowView> {
        self.data(RequestBuilder::get(format!("/workflows/{}", segment(workflow)))).await
    }

    pub async fn create_workflow(&self, definition: &Definition) -> Result<WorkflowView> {
        self.data(RequestBuilder::post("/workflows".into()).definition(definition)).await
    }

    /// Creates a new version; open runs keep theirs.
    pub async fn replace_workflow(&self, workflow: &str, definition: &Definition) -> Result<WorkflowView> {
        self.data(RequestBuilder::new(Method::PUT, format!("/workflows/{}", segment(workflow))).definition(definition))
            .await
    }

    pub async fn delete_workflow(&self, workflow: &str) -> Result<()> {
        self.data::<Value>(RequestBuilder::new(Method::DELETE, format!("/workflows/{}", segment(workflow))))
            .await
            .map(drop)
    }

    pub async fn validate(&self, definition: &Definition) -> Result<ValidationView> {
        self.data(RequestBuilder::post("/workflows/validate".into()).definition(definition)).await
    }

    /// `enable` or `disable`.
    pub async fn switch_workflow(&self, workflow: &str, verb: &str) -> Result<WorkflowView> {
        self.data(RequestBuilder::post(format!("/workflows/{}/{verb}", segment(workflow)))).await
    }

    /// New runs stay `pending` until the workflow is resumed.
    pub async fn pause_workflow(&self, workflow: &str, request: &PauseRequest) -> Result<WorkflowView> {
        self.data(RequestBuilder::post(format!("/workflows/{}/pause", segment(workflow))).json(request)).await
    }

    pub async fn resume_workflow(&self, workflow: &str, request: &ResumeRequest) -> Result<WorkflowView> {
        self.data(RequestBuilder::post(format!("/workflows/{}/resume", segment(workflow))).json(request)).await
    }

    /// The versions of a workflow, newest first.
    pub async fn workflow_history(
        &self,
        workflow: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<VersionEntryView>> {
        let request = RequestBuilder::get(format!("/workflows/{}/history", segment(workflow)));
        self.page(request.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn workflow_diff(&self, workflow: &str, from: Option<&str>, to: Option<&str>) -> Result<DiffView> {
        let request = RequestBuilder::get(format!("/workflows/{}/diff", segment(workflow)));
        self.data(request.query("from", from).query("to", to)).await
    }

    /// Starts a run. Returns once it is durable.
    pub async fn trigger(&self, workflow: &str, start: &Start) -> Result<StartedView> {
        self.data(start_request(workflow, start)).await
    }

    /// Starts a run and returns it once it has ended, or in its current state after `wait` (such as `30s`, at most
    /// `60s`).
    pub async fn trigger_and_wait(&self, workflow: &str, start: &Start, wait: &str) -> Result<RunView> {
        self.data(start_request(workflow, start).query("wait", Some(wait))).await
    }
}

fn start_request(workflow: &str, start: &Start) -> RequestBuilder {
    let mut request = RequestBuilder::post(format!("/workflows/{}/trigger", segment(workflow)));
    for (key, value) in &start.labels {
        request = request.query("label", Some(format!("{key}:{value}")));
    }
    request = request.query("actor", start.actor.as_deref());
    request.body = start.body.clone().map(|bytes| ("application/json", bytes));
    request.header("idempotency-key", start.idempotency_key.as_deref())
}
