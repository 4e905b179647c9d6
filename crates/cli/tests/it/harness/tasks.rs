//! Requests of producers and workers about tasks.

use super::{Answer, Api, eventually};
use serde_json::{Value, json};
use std::thread::JoinHandle;

/// A task that a worker has claimed.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub api: Api,
    pub view: Value,
}

impl Api {
    /// Submits a task and returns its id.
    #[track_caller]
    pub fn submit(&self, name: &str, payload: Value) -> String {
        self.submit_with(&json!({ "type": name, "payload": payload }))
    }

    #[track_caller]
    pub fn submit_with(&self, request: &Value) -> String {
        let seen = self.post("/api/v1/tasks", request).data(201);
        seen["task_id"].as_str().expect("a task id").to_owned()
    }

    #[track_caller]
    pub fn task(&self, task: &str) -> Value {
        self.get(&format!("/api/v1/tasks/{task}")).data(200)
    }

    /// The events of a task, which must be numbered without gaps.
    #[track_caller]
    pub fn task_events(&self, task: &str) -> Vec<Value> {
        let events = self.get(&format!("/api/v1/tasks/{task}/events")).data(200);
        let events = events.as_array().expect("a list").clone();
        for (i, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], i as u64 + 1, "no gaps: {event}");
        }
        events
    }

    /// Claims ready tasks without waiting.
    #[track_caller]
    pub fn claim(&self, worker: &str, types: &[&str], max: u32) -> Vec<Claimed> {
        self.claim_with(&json!({ "worker_id": worker, "types": types, "max": max, "wait": "0s" }))
    }

    #[track_caller]
    pub fn claim_with(&self, request: &Value) -> Vec<Claimed> {
        let answer = self.post("/api/v1/tasks/claim", request);
        answer.data(200).as_array().expect("a list").iter().map(|t| Claimed { api: *self, view: t.clone() }).collect()
    }

    /// Claims the only ready task of a type.
    #[track_caller]
    pub fn claim_one(&self, worker: &str, name: &str) -> Claimed {
        let request = json!({ "worker_id": worker, "types": [name], "wait": "20s" });
        self.claim_with(&request).pop().unwrap_or_else(|| panic!("nothing of `{name}` for `{worker}`"))
    }

    /// Sends a claim that waits, in its own thread.
    pub fn claim_later(&self, request: Value) -> JoinHandle<(Answer, std::time::Duration)> {
        let api = *self;
        std::thread::spawn(move || {
            let begun = std::time::Instant::now();
            let answer = api.post("/api/v1/tasks/claim", &request);
            (answer, begun.elapsed())
        })
    }

    /// Waits until the server knows the worker: its claim is open.
    #[track_caller]
    pub fn worker_when_seen(&self, worker: &str) -> Value {
        eventually(&format!("`{worker}` is seen"), || {
            let workers = self.get("/api/v1/workers").data(200);
            workers.as_array().expect("a list").iter().find(|view| view["id"] == worker).cloned()
        })
    }
}

impl Claimed {
    pub fn id(&self) -> &str {
        self.view["task_id"].as_str().expect("an id")
    }

    pub fn token(&self) -> &str {
        self.view["claim_token"].as_str().expect("a token")
    }

    pub fn attempt(&self) -> u64 {
        self.view["attempt"].as_u64().expect("a number")
    }

    /// Reports on the task, with its claim token.
    #[track_caller]
    pub fn report(&self, what: &str, mut body: Value) -> Answer {
        body["claim_token"] = self.token().into();
        self.api.post(&format!("/api/v1/tasks/{}/{what}", self.id()), &body)
    }

    #[track_caller]
    pub fn complete(&self, result: Value) -> Answer {
        self.report("complete", json!({ "result": result }))
    }

    #[track_caller]
    pub fn fail(&self, message: &str) -> Answer {
        self.report("fail", json!({ "error": { "message": message } }))
    }
}

/// The types of events.
pub fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().expect("a name")).collect()
}
