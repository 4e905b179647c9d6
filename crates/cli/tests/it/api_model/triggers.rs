//! Requests about manual triggers.

use super::case::Case;
use super::model::*;
use serde_json::json;

impl Case {
    pub fn create_trigger(&mut self) {
        let (name, found) = self.any_workflow();
        let answer = self.post("/triggers", &json!({ "name": "by hand", "type": "manual", "workflow": name }));
        let Some(workflow) = found else { return assert_eq!(answer.refusal(422), "unknown_workflow") };
        let view = answer.data(201);
        assert_eq!(view["workflow_id"], self.workflows[workflow].id.as_str());
        let id = view["id"].as_str().expect("an id").to_owned();
        self.triggers.push(Trigger { id, workflow, is_enabled: true });
    }

    fn any_trigger(&mut self) -> Option<usize> {
        (!self.triggers.is_empty()).then(|| self.rng.below(self.triggers.len() as u64) as usize)
    }

    /// Enables, disables or deletes a trigger.
    pub fn change_trigger(&mut self) {
        let Some(number) = self.any_trigger() else { return };
        let id = self.triggers[number].id.clone();
        match self.rng.below(3) {
            0 => {
                assert_eq!(self.delete(&format!("/triggers/{id}")).status, 204);
                assert_eq!(self.get(&format!("/triggers/{id}")).refusal(404), "not_found");
                self.triggers.remove(number);
            }
            verb => {
                let path = format!("/triggers/{id}/{}", if verb == 1 { "enable" } else { "disable" });
                assert_eq!(self.post(&path, &json!({})).data(200)["enabled"], verb == 1);
                self.triggers[number].is_enabled = verb == 1;
            }
        }
    }

    /// Triggers are deleted together with their workflow, so the workflow exists.
    pub fn fire(&mut self) {
        let (Some(number), n) = (self.any_trigger(), self.rng.below(2)) else { return };
        let path = format!("/triggers/{}/run", self.triggers[number].id);
        let answer = self.post(&path, &json!({ "variables": { "n": n } }));
        let workflow = self.triggers[number].workflow;
        match &self.workflows[workflow] {
            _ if !self.triggers[number].is_enabled => assert_eq!(answer.refusal(409), "trigger_disabled"),
            Workflow { is_enabled: false, .. } => assert_eq!(answer.refusal(409), "workflow_disabled"),
            _ => drop(self.created(Some(workflow), &answer.data(201)["run_id"], n, None)),
        }
    }
}
