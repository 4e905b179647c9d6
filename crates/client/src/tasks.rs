//! Tasks as their producers see them: record, look at, wait for, cancel, try again.

use crate::{Ask, Client, Error, Result, segment, span};
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

/// A task to be recorded. Only its type and payload are needed.
#[derive(Clone, Debug)]
pub struct Task {
    request: TaskRequest,
    /// Why the payload is no JSON.
    problem: Option<String>,
}

impl Task {
    /// `name` is the dotted type workers claim by, `payload` what the worker gets as its input.
    pub fn new(name: impl Into<String>, payload: &impl Serialize) -> Task {
        let (payload, problem) = match serde_json::value::to_raw_value(payload) {
            Ok(raw) => (Some(raw), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Task { request: TaskRequest { payload, ..empty(name.into()) }, problem }
    }

    /// Lower goes first; 100 if nothing is said.
    pub fn priority(mut self, priority: u32) -> Task {
        self.request.priority = Some(priority);
        self
    }

    /// Not before so long from now.
    pub fn delay(mut self, delay: Duration) -> Task {
        self.request.delay = Some(span(delay));
        self
    }

    /// Not before this time, as in `2026-11-15T09:00:00Z`.
    pub fn run_at(mut self, at: impl Into<String>) -> Task {
        self.request.run_at = Some(at.into());
        self
    }

    pub fn max_attempts(mut self, count: u32) -> Task {
        self.request.max_attempts = Some(count.into());
        self
    }

    /// As on a step of a graph: `{"max_attempts": 5, "backoff": {"type": "exponential", "min": "1s"}}` or `"never"`.
    pub fn retry(mut self, policy: Value) -> Task {
        self.request.retry = Some(policy);
        self
    }

    /// It fails if nobody has claimed it by then.
    pub fn queue_timeout(self, limit: Duration) -> Task {
        self.timeout("queue", limit)
    }

    /// How long one attempt may take.
    pub fn attempt_timeout(self, limit: Duration) -> Task {
        self.timeout("attempt", limit)
    }

    /// How long its worker may say nothing.
    pub fn heartbeat_timeout(self, limit: Duration) -> Task {
        self.timeout("heartbeat", limit)
    }

    /// How long everything may take together.
    pub fn total_timeout(self, limit: Duration) -> Task {
        self.timeout("total", limit)
    }

    fn timeout(mut self, name: &str, limit: Duration) -> Task {
        let timeouts = self.request.timeouts.get_or_insert_with(|| Value::Object(Default::default()));
        timeouts[name] = span(limit);
        self
    }

    /// Tasks with the same key share the type's limits per key, and keys are served in turn.
    pub fn concurrency_key(mut self, key: impl Into<String>) -> Task {
        self.request.concurrency_key = Some(key.into());
        self
    }

    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Task {
        self.request.labels.insert(name.into(), value.into());
        self
    }

    /// Submitted again with the same key, the same task is recorded once.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Task {
        self.request.idempotency_key = Some(key.into());
        self
    }

    /// Called when the task has ended.
    pub fn callback_url(mut self, url: impl Into<String>) -> Task {
        self.request.callback_url = Some(url.into());
        self
    }

    fn request(self) -> Result<TaskRequest> {
        match self.problem {
            None => Ok(self.request),
            Some(problem) => {
                Err(Error::Unusable(format!("the payload of `{}` is no JSON: {problem}", self.request.name)))
            }
        }
    }
}

/// As the API has it.
impl From<TaskRequest> for Task {
    fn from(request: TaskRequest) -> Task {
        Task { request, problem: None }
    }
}

fn empty(name: String) -> TaskRequest {
    TaskRequest {
        name,
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

/// Which tasks to list; everything is optional.
#[derive(Clone, Debug, Default)]
pub struct TaskQuery {
    /// A type, or with a `%` at the end all that begin like it.
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
    /// Work for somebody else to do.
    pub fn tasks(&self) -> Tasks<'_> {
        Tasks { client: self }
    }
}

impl Tasks<'_> {
    /// Answers once the task is durable. No worker needs to exist.
    pub async fn submit(&self, task: Task) -> Result<SubmittedView> {
        self.client.data(Ask::post("/tasks".into()).json(&task.request()?)).await
    }

    /// Up to 10,000 at once, all of them or none; answers in their order.
    pub async fn submit_all(&self, tasks: impl IntoIterator<Item = Task>) -> Result<Vec<SubmittedView>> {
        let requests = tasks.into_iter().map(Task::request).collect::<Result<Vec<_>>>()?;
        self.client.data(Ask::post("/tasks".into()).json(&requests)).await
    }

    pub async fn get(&self, task: &str) -> Result<TaskView> {
        self.client.data(Ask::get(format!("/tasks/{}", segment(task)))).await
    }

    /// The task when it has ended, or as it is after `wait` (such as `30s`, at most `60s`).
    pub async fn get_after(&self, task: &str, wait: &str) -> Result<TaskView> {
        self.client.data(Ask::get(format!("/tasks/{}", segment(task))).query("wait", Some(wait))).await
    }

    /// The task once it has ended, however it did; [`Error::Late`] if it has not by then. A server that is away
    /// meanwhile is asked again.
    pub async fn wait(&self, task: &str, timeout: Duration) -> Result<TaskView> {
        let is_open = |view: &TaskView| {
            let has_ended = matches!(&*view.status, "succeeded" | "failed" | "cancelled");
            (!has_ended).then(|| view.status.to_string())
        };
        self.client.wait(&format!("/tasks/{}", segment(task)), task, timeout, is_open).await
    }

    /// Waits for the end and reads the result; a task that failed or was cancelled is [`Error::Ended`].
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
        let ask = Ask::get("/tasks".into())
            .query("type", name.as_ref())
            .query("status", status.as_ref())
            .query("label", label.as_ref())
            .query("since", since.as_ref())
            .query("until", until.as_ref())
            .query("limit", limit.as_ref())
            .query("cursor", cursor.as_ref());
        self.client.page(ask).await
    }

    /// Everything that happened to it, in order.
    pub async fn events(&self, task: &str) -> Result<Vec<EventView>> {
        Ok(self.client.page(Ask::get(format!("/tasks/{}/events", segment(task)))).await?.data)
    }

    pub async fn cancel(&self, task: &str, request: &CancelRequest) -> Result<TaskStatusView> {
        self.client.data(Ask::post(format!("/tasks/{}/cancel", segment(task))).json(request)).await
    }

    /// Makes a task that waits for its next attempt due, or releases one that failed as a new task.
    pub async fn retry(&self, task: &str, request: &ResumeRequest) -> Result<RetriedView> {
        self.client.data(Ask::post(format!("/tasks/{}/retry", segment(task))).json(request)).await
    }

    /// Makes it vanish; an open one is cancelled.
    pub async fn delete(&self, task: &str) -> Result<()> {
        self.client.data::<Value>(Ask::new(Method::DELETE, format!("/tasks/{}", segment(task)))).await.map(drop)
    }

    /// The same for many; `more` in the answer says to call again.
    pub async fn bulk(&self, request: &BulkRequest) -> Result<BulkView> {
        self.client.data(Ask::post("/tasks/bulk".into()).json(request)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_says_what_was_chosen_and_nothing_else() {
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
    fn a_payload_that_is_no_json_is_refused_when_it_is_submitted() {
        let nameless = BTreeMap::from([(vec![1], 2)]);
        assert!(matches!(Task::new("a.v1", &nameless).request(), Err(Error::Unusable(m)) if m.contains("a.v1")));
    }
}
