//! Tasks for producers: submit, show, wait, list, cancel, retry, delete.

use crate::{Client, Error, RequestBuilder, Result, segment, span};
use api::{
    BulkRequest, BulkView, CancelRequest, EventView, Page, ResumeRequest, RetriedView, SubmittedView, TaskRequest,
    TaskStatusView, TaskView,
};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A task to submit. Only its type and payload are required.
#[derive(Clone, Debug)]
pub struct Task {
    request: TaskRequest,
    /// Why the payload could not be serialized.
    problem: Option<String>,
}

impl Task {
    /// `task_type` is the dotted name by which workers claim the task, `payload` its input.
    pub fn new(task_type: impl Into<String>, payload: &impl Serialize) -> Task {
        let (payload, problem) = match serde_json::value::to_raw_value(payload) {
            Ok(raw) => (Some(raw), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Task { request: TaskRequest { payload, ..empty(task_type.into()) }, problem }
    }

    /// Tasks with a lower number go first; by default 100.
    pub fn priority(mut self, priority: u32) -> Task {
        self.request.priority = Some(priority);
        self
    }

    /// No worker gets the task before this long from now.
    pub fn delay(mut self, delay: Duration) -> Task {
        self.request.delay = Some(span(delay));
        self
    }

    /// No worker gets the task before this time, such as `2026-11-15T09:00:00Z`.
    pub fn run_at(mut self, at: impl Into<String>) -> Task {
        self.request.run_at = Some(at.into());
        self
    }

    pub fn max_attempts(mut self, count: u32) -> Task {
        self.request.max_attempts = Some(count.into());
        self
    }

    /// The retry policy, as on a step of a graph:
    /// `{"max_attempts": 5, "backoff": {"type": "exponential", "min": "1s"}}` or `"never"`.
    pub fn retry(mut self, policy: Value) -> Task {
        self.request.retry = Some(policy);
        self
    }

    /// The task fails if no worker claims it within this time.
    pub fn queue_timeout(self, limit: Duration) -> Task {
        self.timeout("queue", limit)
    }

    /// How long one attempt may take.
    pub fn attempt_timeout(self, limit: Duration) -> Task {
        self.timeout("attempt", limit)
    }

    /// How long the worker may go without a heartbeat.
    pub fn heartbeat_timeout(self, limit: Duration) -> Task {
        self.timeout("heartbeat", limit)
    }

    /// How long all attempts together may take.
    pub fn total_timeout(self, limit: Duration) -> Task {
        self.timeout("total", limit)
    }

    fn timeout(mut self, name: &str, limit: Duration) -> Task {
        let timeouts = self.request.timeouts.get_or_insert_with(|| Value::Object(Default::default()));
        timeouts[name] = span(limit);
        self
    }

    /// Tasks with the same key share the limits per key of their type, and keys are served in turn.
    pub fn concurrency_key(mut self, key: impl Into<String>) -> Task {
        self.request.concurrency_key = Some(key.into());
        self
    }

    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Task {
        self.request.labels.insert(name.into(), value.into());
        self
    }

    /// A task that is submitted again with the same key is not created again.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Task {
        self.request.idempotency_key = Some(key.into());
        self
    }

    /// A URL that is called when the task has ended.
    pub fn callback_url(mut self, url: impl Into<String>) -> Task {
        self.request.callback_url = Some(url.into());
        self
    }

    fn request(self) -> Result<TaskRequest> {
        match self.problem {
            None => Ok(self.request),
            Some(problem) => Err(Error::Unusable(format!(
                "the payload of `{}` cannot be serialized as JSON: {problem}",
                self.request.name
            ))),
        }
    }
}

impl From<TaskRequest> for Task {
    fn from(request: TaskRequest) -> Task {
        Task { request, problem: None }
    }
}

fn empty(task_type: String) -> TaskRequest {
    TaskRequest {
        name: task_type,
        payload: None,
        priority: None,
        run_at: None,
        delay: None,
        max_attempts: None,
        retry: None,
        timeouts: None,
        concurrency_key: None,
        labels: BTreeMap::new(),
        idempotency_key: None,
        callback_url: None,
    }
}

/// Which tasks to list. Every field is optional.
#[derive(Clone, Debug, Default)]
pub struct TaskQuery {
    /// A type; with `%` at the end, every type with this prefix.
    pub name: Option<String>,
    pub status: Option<String>,
    /// `key:value`
    pub label: Option<String>,
    pub since: Option<String>,
    pub until: Option<String>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

/// See [`Client::tasks`].
#[derive(Clone, Copy)]
pub struct Tasks<'c> {
    client: &'c Client,
}

impl Client {
    /// Submits and manages tasks.
    pub fn tasks(&self) -> Tasks<'_> {
        Tasks { client: self }
    }
}

impl Tasks<'_> {
    /// Submits a task. Returns once it is durable; no worker needs to exist.
    pub async fn submit(&self, task: Task) -> Result<SubmittedView> {
        self.client.data(RequestBuilder::post("/tasks".into()).json(&task.request()?)).await
    }

    /// Submits up to 10,000 tasks, all of them or none. The result has the same order.
    pub async fn submit_all(&self, tasks: impl IntoIterator<Item = Task>) -> Result<Vec<SubmittedView>> {
        let requests = tasks.into_iter().map(Task::request).collect::<Result<Vec<_>>>()?;
        self.client.data(RequestBuilder::post("/tasks".into()).json(&requests)).await
    }

    pub async fn get(&self, task: &str) -> Result<TaskView> {
        self.client.data(RequestBuilder::get(format!("/tasks/{}", segment(task)))).await
    }

    /// The task once it has ended, or in its current state after `wait` (such as `30s`, at most `60s`).
    pub async fn get_after(&self, task: &str, wait: &str) -> Result<TaskView> {
        self.client.data(RequestBuilder::get(format!("/tasks/{}", segment(task))).query("wait", Some(wait))).await
    }

    /// Waits until the task has ended, whatever its outcome; [`Error::Late`] after `timeout`. Continues to wait if the
    /// server cannot be reached for a while.
    pub async fn wait(&self, task: &str, timeout: Duration) -> Result<TaskView> {
        let open_status = |view: &TaskView| {
            let has_ended = matches!(&*view.status, "succeeded" | "failed" | "cancelled");
            (!has_ended).then(|| view.status.to_string())
        };
        self.client.wait(&format!("/tasks/{}", segment(task)), task, timeout, open_status).await
    }

    /// Waits until the task has ended and returns its result; [`Error::Ended`] if it failed or was cancelled.
    pub async fn result<T: DeserializeOwned>(&self, task: &str, timeout: Duration) -> Result<T> {
        let view = self.wait(task, timeout).await?;
        if view.status == "succeeded" {
            return self.client.read(view.result);
        }
        let (code, message) = view.error.map(|e| (e.code, e.message)).unwrap_or_default();
        Err(Error::Ended { what: view.id, status: view.status.into_owned(), code, message })
    }

    /// Newest first.
    pub async fn list(&self, query: &TaskQuery) -> Result<Page<TaskView>> {
        let TaskQuery { name, status, label, since, until, limit, cursor } = query;
        let request = RequestBuilder::get("/tasks".into())
            .query("type", name.as_ref())
            .query("status", status.as_ref())
            .query("label", label.as_ref())
            .query("since", since.as_ref())
            .query("until", until.as_ref())
            .query("limit", limit.as_ref())
            .query("cursor", cursor.as_ref());
        self.client.page(request).await
    }

    /// The events of the task, in order.
    pub async fn events(&self, task: &str) -> Result<Vec<EventView>> {
        Ok(self.client.page(RequestBuilder::get(format!("/tasks/{}/events", segment(task)))).await?.data)
    }

    pub async fn cancel(&self, task: &str, request: &CancelRequest) -> Result<TaskStatusView> {
        self.client.data(RequestBuilder::post(format!("/tasks/{}/cancel", segment(task))).json(request)).await
    }

    /// Starts the next attempt of a waiting task now, or submits a failed task again as a new one.
    pub async fn retry(&self, task: &str, request: &ResumeRequest) -> Result<RetriedView> {
        self.client.data(RequestBuilder::post(format!("/tasks/{}/retry", segment(task))).json(request)).await
    }

    /// Deletes a task; an open one is cancelled.
    pub async fn delete(&self, task: &str) -> Result<()> {
        self.client
            .data::<Value>(RequestBuilder::new(Method::DELETE, format!("/tasks/{}", segment(task))))
            .await
            .map(drop)
    }

    /// Cancels, retries or deletes every task that matches a filter. If `more` is true, call it again.
    pub async fn bulk(&self, request: &BulkRequest) -> Result<BulkView> {
        self.client.data(RequestBuilder::post("/tasks/bulk".into()).json(request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_has_only_the_fields_that_were_set() {
        let plain = Task::new("a.v1", &json!({ "n": 1 })).request().unwrap();
        assert_eq!(serde_json::to_value(&plain).unwrap(), json!({ "type": "a.v1", "payload": { "n": 1 } }));
        let full = Task::new("a.v1", &())
            .priority(1)
            .delay(Duration::from_micros(1_500))
            .max_attempts(2)
            .attempt_timeout(Duration::from_secs(9))
            .total_timeout(Duration::from_secs(60))
            .concurrency_key("k")
            .label("team", "blue")
            .idempotency_key("once");
        assert_eq!(
            serde_json::to_value(full.request().unwrap()).unwrap(),
            json!({
                "type": "a.v1", "payload": null, "priority": 1, "delay": "2ms", "max_attempts": 2,
                "timeouts": { "attempt": "9000ms", "total": "60000ms" },
                "concurrency_key": "k", "labels": { "team": "blue" }, "idempotency_key": "once",
            })
        );
    }

    #[test]
    fn a_payload_that_cannot_be_serialized_is_refused_on_submit() {
        let non_string_keys = BTreeMap::from([(vec![1], 2)]);
        assert!(matches!(Task::new("a.v1", &non_string_keys).request(), Err(Error::Unusable(m)) if m.contains("a.v1")));
    }
}
