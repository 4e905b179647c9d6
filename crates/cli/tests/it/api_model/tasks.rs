//! Requests of producers and workers about tasks.

use super::case::Case;
use super::model::*;
use serde_json::json;

impl Case {
    /// Submits a task without a workflow.
    pub fn submit(&mut self) {
        let (n, key) = (self.rng.below(2), self.any_key());
        let request = json!({ "type": self.task_type("single"), "payload": { "n": n }, "idempotency_key": key });
        let answer = self.post("/tasks", &request);
        match key.and_then(|key| self.keys.get(&(None, key))).cloned() {
            Some(first) if first.n != n => assert_eq!(answer.refusal(422), "idempotency_key_reused"),
            Some(first) => {
                let view = answer.data(200);
                assert_eq!((&view["run_id"], &view["deduplicated"]), (&json!(self.runs[first.run].id), &json!(true)));
            }
            None => {
                let run = self.created(None, &answer.data(201)["run_id"], n, None);
                if let Some(key) = key {
                    self.keys.insert((None, key), Keyed { n, label: None, run });
                }
            }
        }
    }

    /// Claims tasks. All that can be claimed are handed out, each to one worker, and no other.
    pub fn claim(&mut self) {
        let (name, max) = (self.rng.pick(&["step", "single"]), 1 + self.rng.below(3));
        let request =
            json!({ "worker_id": "w", "types": [self.task_type(name)], "max": max, "lease": "1h", "wait": "0s" });
        let claimed = self.api.claim_with(&request);
        let is_of_type = |run: &Run| run.workflow.is_some() == (name == "step");
        let ready = self.runs.iter().filter(|run| run.is_claimable() && is_of_type(run)).count() as u64;
        assert_eq!(claimed.len() as u64, ready.min(max), "{ready} tasks are ready: {claimed:?}");
        for task in claimed {
            let run = self.runs.iter_mut().find(|run| task.view["run_id"] == run.id.as_str()).expect("a known run");
            assert!(run.is_claimable() && is_of_type(run), "{run:?}");
            assert_eq!((&task.view["input"], task.attempt()), (&json!({ "n": run.n }), 1));
            run.lease = Some(task);
        }
    }

    /// Reports on a task that was claimed, perhaps not for the first time.
    pub fn report(&mut self) {
        let leased: Vec<usize> = (0..self.runs.len()).filter(|run| self.runs[*run].lease.is_some()).collect();
        if leased.is_empty() {
            return;
        }
        let run = self.rng.pick(&leased);
        let task = self.runs[run].lease.clone().expect("a lease");
        let (what, body) = self.rng.pick(&[("complete", "result"), ("fail", "error"), ("heartbeat", "progress")]);
        let value = if what == "fail" { json!({ "message": "no" }) } else { json!(1) };
        let mut report = json!({ "claim_token": task.token() });
        report[body] = value;
        if what == "fail" {
            report["final"] = true.into();
        }
        let answer = self.post(&format!("/tasks/{}/{what}", task.id()), &report);
        let run = &mut self.runs[run];
        match (run.state, what) {
            _ if run.is_deleted => assert_eq!(answer.refusal(404), "not_found"),
            (RunState::Open, "heartbeat") => assert_eq!(answer.data(200)["cancel"], false),
            (RunState::Open, _) => {
                assert_eq!(answer.data(200)["status"], "recorded");
                run.state = if what == "complete" { RunState::Completed } else { RunState::Failed };
            }
            // The same report again gets the same answer.
            (RunState::Completed, "complete") | (RunState::Failed, "fail") => {
                assert_eq!(answer.data(200)["status"], "recorded");
            }
            (RunState::Cancelled, "heartbeat") => assert_eq!(answer.data(200)["cancel"], true),
            (RunState::Cancelled, _) => assert_eq!(answer.refusal(409), "run_cancelled"),
            _ => assert_eq!(answer.refusal(409), "stale_claim"),
        }
    }
}
