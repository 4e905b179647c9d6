//! Reads: single objects, and lists page by page.

use super::case::{Case, LABELS};
use super::model::*;
use serde_json::{Value, json};

impl Case {
    pub fn compare_one(&mut self) {
        match self.rng.below(4) {
            0 => self.compare_workflows(),
            1 => self.compare_runs(),
            2 => self.compare_triggers(),
            _ => {
                let Some(run) = self.any_run() else { return };
                self.compare_run(run);
            }
        }
    }

    pub fn compare_everything(&mut self) {
        self.compare_workflows();
        self.compare_triggers();
        for _ in 0..3 {
            self.compare_runs();
        }
        (0..self.runs.len()).for_each(|run| self.compare_run(run));
    }

    fn compare_run(&mut self, run: usize) {
        let answer = self.get(&format!("/runs/{}", self.runs[run].id));
        let run = &self.runs[run];
        if run.is_deleted {
            return assert_eq!(answer.refusal(404), "not_found");
        }
        let view = answer.data(200);
        // A single task is pending until it is leased, as any task is.
        let status = view["status"].as_str().unwrap_or_default();
        let is_single = run.workflow.is_none() && run.state == RunState::Open;
        assert!(run.state.statuses().contains(&status) || is_single && status == "pending", "{run:?}: {view:#}");
        assert_eq!((&view["input"], &view["version"]), (&json!({ "n": run.n }), &json!(run.version)), "{view:#}");
        let label = run.label.map_or(json!({}), |label| json!({ "team": label }));
        assert_eq!(view["labels"], label, "{view:#}");
        let events = self.api.events(&run.id);
        let ends = events.iter().filter(|event| is_end(event)).count();
        assert_eq!(ends, usize::from(run.state.is_ended()), "a run ends once: {events:?}");
    }

    /// The runs of a workflow by status and label, in pages of any size, newest first.
    fn compare_runs(&mut self) {
        let (name, found) = self.any_workflow();
        let states = [RunState::Queued, RunState::Open, RunState::Completed, RunState::Failed, RunState::Cancelled];
        let state = self.rng.one_in(2).then(|| self.rng.pick(&states));
        let label = self.rng.one_in(4).then(|| self.rng.pick(&LABELS));
        let status = state.map_or(String::new(), |state| format!("&status={}", state.statuses().join(",")));
        let with_label = label.map_or(String::new(), |label| format!("&label=team:{label}"));
        let path = format!("/workflows/{name}/runs?limit={}{status}{with_label}", 1 + self.rng.below(4));
        let Some(found) = found else { return assert_eq!(self.get(&path).refusal(404), "not_found") };
        let is_listed = |run: &&Run| {
            run.workflow == Some(found)
                && !run.is_deleted
                && state.is_none_or(|state| run.state == state)
                && label.is_none_or(|label| run.label == Some(label))
        };
        let expected = ids(self.runs.iter().filter(is_listed).map(|run| &run.id));
        assert_eq!(self.pages(&path), expected, "{path}");
    }

    fn compare_workflows(&mut self) {
        let path = format!("/workflows?name={}&limit={}", self.name(""), 1 + self.rng.below(3));
        let expected = ids(self.workflows.iter().filter(|workflow| !workflow.is_deleted).map(|workflow| &workflow.id));
        assert_eq!(self.pages(&path), expected);
        for number in 0..self.workflows.len() {
            let answer = self.get(&format!("/workflows/{}", self.workflows[number].id));
            let workflow = &self.workflows[number];
            if workflow.is_deleted {
                assert_eq!(answer.refusal(404), "not_found");
                continue;
            }
            let view = answer.data(200);
            let expected = json!([workflow.name, workflow.version, workflow.is_enabled]);
            assert_eq!(json!([view["name"], view["version"], view["enabled"]]), expected);
            let history = self.pages(&format!("/workflows/{}/history?limit=2", self.workflows[number].id));
            assert_eq!(history.len() as u64, self.workflows[number].version);
        }
    }

    fn compare_triggers(&mut self) {
        let (name, found) = self.any_workflow();
        let Some(found) = found else { return };
        let path = format!("/triggers?workflow={name}&limit={}", 1 + self.rng.below(3));
        let own = self.triggers.iter().filter(|trigger| trigger.workflow == found);
        let expected = ids(own.map(|trigger| &trigger.id));
        assert_eq!(self.pages(&path), expected);
    }

    /// The ids (or numbers) of all items of a list, following its cursors.
    fn pages(&mut self, path: &str) -> Vec<String> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        for _ in 0..100 {
            let answer = self.get(&format!("{path}{cursor}"));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let page = answer.json();
            let id = |item: &Value| item["id"].as_str().map_or_else(|| item["number"].to_string(), str::to_owned);
            found.extend(page["data"].as_array().expect("a list").iter().map(id));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return found,
            }
        }
        panic!("the list {path} does not end");
    }
}

fn is_end(event: &Value) -> bool {
    let kind = event["type"].as_str().unwrap_or_default();
    ["run.completed", "run.failed", "run.cancelled", "run.timeout"].contains(&kind)
}

/// Newest first: ids sort by time.
fn ids<'a>(ids: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut ids: Vec<String> = ids.cloned().collect();
    ids.sort_by(|a, b| b.cmp(a));
    ids
}
