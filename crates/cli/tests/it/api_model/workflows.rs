//! Requests about workflows and their runs.

use super::case::Case;
use super::model::*;
use serde_json::{Value, json};

impl Case {
    pub fn define(&mut self) {
        let ((name, found), kind) = (self.any_workflow(), self.rng.pick(&KINDS));
        let definition = json!({ "name": name, "tasks": { "only": kind.step(&self.task_type("step")) } });
        let answer = self.post("/workflows", &definition);
        if found.is_some() {
            return assert_eq!(answer.refusal(409), "name_taken");
        }
        let view = answer.data(201);
        assert_eq!((&view["version"], &view["enabled"]), (&json!(1), &json!(true)));
        let id = view["id"].as_str().expect("an id").to_owned();
        let (version, is_enabled, is_paused, is_deleted) = (1, true, false, false);
        self.workflows.push(Workflow { id, name, kind, version, is_enabled, is_paused, is_deleted });
    }

    /// A definition that does the same is no new version.
    pub fn edit(&mut self) {
        let ((name, found), kind) = (self.any_workflow(), self.rng.pick(&KINDS));
        let definition = json!({ "name": name, "tasks": { "only": kind.step(&self.task_type("step")) } });
        let answer = self.put(&format!("/workflows/{name}"), &definition);
        let Some(found) = found else { return assert_eq!(answer.refusal(404), "not_found") };
        let workflow = &mut self.workflows[found];
        workflow.version += u64::from(workflow.kind != kind);
        workflow.kind = kind;
        assert_eq!(answer.data(200)["version"], workflow.version);
    }

    pub fn delete_workflow(&mut self) {
        let (name, found) = self.any_workflow();
        let answer = self.delete(&format!("/workflows/{name}"));
        match found {
            None => assert_eq!(answer.refusal(404), "not_found"),
            Some(found) => {
                assert_eq!(answer.status, 204, "{}", answer.text());
                self.workflows[found].is_deleted = true;
                self.triggers.retain(|trigger| trigger.workflow != found);
                // A deleted workflow cannot be resumed, so the runs that waited for that start.
                self.start_queued(found);
            }
        }
    }

    pub fn enable_or_disable(&mut self) {
        let ((name, found), enable) = (self.any_workflow(), self.rng.one_in(2));
        let answer = self.post(&format!("/workflows/{name}/{}", if enable { "enable" } else { "disable" }), &json!({}));
        let Some(found) = found else { return assert_eq!(answer.refusal(404), "not_found") };
        assert_eq!(answer.data(200)["enabled"], enable);
        self.workflows[found].is_enabled = enable;
    }

    pub fn pause_or_resume_workflow(&mut self) {
        let ((name, found), pause) = (self.any_workflow(), self.rng.one_in(2));
        let answer = self.post(&format!("/workflows/{name}/{}", if pause { "pause" } else { "resume" }), &json!({}));
        let Some(found) = found else { return assert_eq!(answer.refusal(404), "not_found") };
        answer.data(200);
        self.workflows[found].is_paused = pause;
        if !pause {
            self.start_queued(found);
        }
    }

    /// The runs that waited because their workflow was paused start.
    fn start_queued(&mut self, workflow: usize) {
        for run in 0..self.runs.len() {
            if self.runs[run].workflow == Some(workflow) && self.runs[run].state == RunState::Queued {
                self.runs[run].state = RunState::Open;
                self.end_by_itself(run);
            }
        }
    }

    /// A run without a worker or a callback ends at once, unless it is paused.
    pub fn end_by_itself(&mut self, run: usize) {
        let run = &mut self.runs[run];
        run.state = match run.kind {
            Kind::Ends if !run.is_paused => RunState::Completed,
            Kind::Fails if !run.is_paused => RunState::Failed,
            _ => return,
        };
        let view = self.api.finished(&run.id);
        assert!(run.state.statuses().contains(&view["status"].as_str().unwrap_or_default()), "{view:#}");
    }

    pub fn start(&mut self) {
        let ((name, found), n, key, label) = (self.any_workflow(), self.rng.below(2), self.any_key(), self.any_label());
        let query = label.map_or(String::new(), |label| format!("?label=team:{label}"));
        let headers: Vec<(&str, &str)> = key.map(|key| ("Idempotency-Key", key)).into_iter().collect();
        let answer = self.post_with(&format!("/workflows/{name}/trigger{query}"), &headers, &json!({ "n": n }));
        let Some(found) = found else { return assert_eq!(answer.refusal(404), "not_found") };
        match key.and_then(|key| self.keys.get(&(Some(found), key))).cloned() {
            Some(first) if (first.n, first.label) != (n, label) => {
                assert_eq!(answer.refusal(422), "idempotency_key_reused");
            }
            Some(first) if self.runs[first.run].is_deleted => assert_eq!(answer.refusal(409), "run_deleted"),
            Some(first) => {
                let view = answer.data(200);
                assert_eq!((&view["run_id"], &view["deduplicated"]), (&json!(self.runs[first.run].id), &json!(true)));
            }
            None if !self.workflows[found].is_enabled => assert_eq!(answer.refusal(409), "workflow_disabled"),
            None => {
                let run = self.created(Some(found), &answer.data(201)["run_id"], n, label);
                if let Some(key) = key {
                    self.keys.insert((Some(found), key), Keyed { n, label, run });
                }
            }
        }
    }

    /// All runs of a batch are created, or none. Each key is used at most once in a batch.
    pub fn start_batch(&mut self) {
        let (name, found) = self.any_workflow();
        let mut keys = super::case::KEYS.to_vec();
        let items: Vec<(u64, Option<&'static str>)> = (0..1 + self.rng.below(3))
            .map(|_| {
                let key = self.rng.one_in(2).then(|| keys.remove(self.rng.below(keys.len() as u64) as usize));
                (self.rng.below(2), key)
            })
            .collect();
        let item = |(n, key): &(u64, Option<&str>)| match key {
            Some(key) => json!({ "body": { "n": n }, "idempotency_key": key }),
            None => json!({ "body": { "n": n } }),
        };
        let body: Vec<Value> = items.iter().map(item).collect();
        let answer = self.post(&format!("/workflows/{name}/trigger-batch"), &json!({ "items": body }));
        let Some(found) = found else { return assert_eq!(answer.refusal(404), "not_found") };
        let first = |key: &Option<&'static str>| key.and_then(|key| self.keys.get(&(Some(found), key))).cloned();
        let is_reused = |(n, key): &(u64, Option<&'static str>)| {
            first(key).is_some_and(|first| (first.n, first.label) != (*n, None))
        };
        if !self.workflows[found].is_enabled {
            return assert_eq!(answer.refusal(409), "workflow_disabled");
        }
        if items.iter().any(is_reused) {
            return assert_eq!(answer.refusal(422), "idempotency_key_reused");
        }
        let views = answer.data(201);
        for ((n, key), view) in items.into_iter().zip(views.as_array().expect("a list")) {
            match key.and_then(|key| self.keys.get(&(Some(found), key))) {
                Some(first) => {
                    let run = &self.runs[first.run];
                    assert_eq!((&view["run_id"], &view["deduplicated"]), (&json!(run.id), &json!(true)));
                    assert_eq!(view["status"] == "deleted", run.is_deleted, "{view}");
                }
                None => {
                    let run = self.created(Some(found), &view["run_id"], n, None);
                    if let Some(key) = key {
                        self.keys.insert((Some(found), key), Keyed { n, label: None, run });
                    }
                }
            }
        }
    }

    /// Adds a run that was just created.
    pub fn created(&mut self, workflow: Option<usize>, id: &Value, n: u64, label: Option<&'static str>) -> usize {
        let id = id.as_str().expect("an id").to_owned();
        assert!(self.runs.iter().all(|run| run.id != id), "{id} is not new");
        let (kind, version, state) = match workflow.map(|workflow| &self.workflows[workflow]) {
            None => (Kind::Works, 1, RunState::Open),
            Some(Workflow { kind, version, is_paused: true, .. }) => (*kind, *version, RunState::Queued),
            Some(Workflow { kind, version, .. }) => (*kind, *version, RunState::Open),
        };
        let (is_paused, is_deleted, lease) = (false, false, None);
        self.runs.push(Run { id, workflow, kind, version, state, is_paused, is_deleted, n, label, lease });
        let run = self.runs.len() - 1;
        if state == RunState::Open {
            self.end_by_itself(run);
        }
        run
    }

    pub fn cancel(&mut self) {
        let Some(run) = self.any_run() else { return };
        let answer = self.post(&format!("/runs/{}/cancel", self.runs[run].id), &json!({ "actor": "ada" }));
        let run = &mut self.runs[run];
        match run.state {
            _ if run.is_deleted => assert_eq!(answer.refusal(404), "not_found"),
            RunState::Completed | RunState::Failed => assert_eq!(answer.refusal(409), "run_ended"),
            RunState::Cancelled | RunState::Queued | RunState::Open => {
                assert_eq!(answer.data(200)["status"], "cancelled");
                run.state = RunState::Cancelled;
            }
        }
    }

    pub fn pause_or_resume_run(&mut self) {
        let Some(run) = self.any_run() else { return };
        let pause = self.rng.one_in(2);
        let path = format!("/runs/{}/{}", self.runs[run].id, if pause { "pause" } else { "resume" });
        let answer = self.post(&path, &json!({}));
        if self.runs[run].is_deleted {
            assert_eq!(answer.refusal(404), "not_found");
        } else if self.runs[run].state.is_ended() {
            assert_eq!(answer.refusal(409), "run_ended");
        } else {
            answer.data(200);
            self.runs[run].is_paused = pause;
            if self.runs[run].state == RunState::Open {
                self.end_by_itself(run);
            }
        }
    }

    pub fn delete_run(&mut self) {
        let Some(run) = self.any_run().filter(|run| self.runs[*run].workflow.is_some()) else { return };
        let answer = self.delete(&format!("/runs/{}", self.runs[run].id));
        let run = &mut self.runs[run];
        if run.is_deleted {
            assert_eq!(answer.refusal(404), "not_found");
        } else if !run.state.is_ended() {
            assert_eq!(answer.refusal(409), "run_not_ended");
        } else {
            assert_eq!(answer.status, 204, "{}", answer.text());
            run.is_deleted = true;
        }
    }
}
