//! Triggers: schedules, webhooks and what came through them.

use crate::{Ask, Client, Definition, Result, segment};
use api::{Page, StartedView};
use reqwest::Method;
use serde_json::{Value, json};

impl Client {
    pub async fn triggers(
        &self,
        workflow: Option<&str>,
        kind: Option<&str>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<Value>> {
        let ask = Ask::get("/triggers".into()).query("workflow", workflow).query("type", kind);
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn trigger_of(&self, trigger: &str) -> Result<Value> {
        self.data(Ask::get(format!("/triggers/{}", segment(trigger)))).await
    }

    /// `{name, type, workflow, config, …}`, in JSON or YAML.
    pub async fn create_trigger(&self, definition: &Definition) -> Result<Value> {
        self.data(Ask::post("/triggers".into()).definition(definition)).await
    }

    /// May it start runs? A note says why.
    pub async fn switch_trigger(&self, trigger: &str, is_enabled: bool, note: Option<&str>) -> Result<Value> {
        let verb = if is_enabled { "enable" } else { "disable" };
        let ask = Ask::post(format!("/triggers/{}/{verb}", segment(trigger)));
        self.data(if note.is_some() { ask.json(&json!({ "note": note })) } else { ask }).await
    }

    /// Fires it now, with `variables` as the run's `trigger.body`.
    pub async fn run_trigger(&self, trigger: &str, variables: Option<&Value>) -> Result<StartedView> {
        let ask = Ask::post(format!("/triggers/{}/run", segment(trigger)));
        self.data(match variables {
            Some(variables) => ask.json(&json!({ "variables": variables })),
            None => ask,
        })
        .await
    }

    /// When a schedule will fire next.
    pub async fn preview_trigger(&self, trigger: &str, count: Option<u32>) -> Result<Vec<Value>> {
        let ask = Ask::get(format!("/triggers/{}/preview", segment(trigger))).query("count", count);
        Ok(self.page(ask).await?.data)
    }

    pub async fn deliveries(&self, trigger: &str, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<Value>> {
        let ask = Ask::get(format!("/triggers/{}/deliveries", segment(trigger)));
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    /// Starts a run with what came in an earlier delivery.
    pub async fn redeliver(&self, trigger: &str, delivery: &str) -> Result<Value> {
        let path = format!("/triggers/{}/deliveries/{}/redeliver", segment(trigger), segment(delivery));
        self.data(Ask::post(path)).await
    }

    pub async fn delete_trigger(&self, trigger: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/triggers/{}", segment(trigger)))).await.map(drop)
    }
}
