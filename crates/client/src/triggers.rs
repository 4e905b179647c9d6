//! Triggers: schedules, webhooks and what came through them.

use crate::{Ask, Client, Result, segment};
use api::Page;
use reqwest::Method;
use serde_json::Value;

impl Client {
    pub async fn triggers(
        &self,
        workflow: Option<&str>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<Value>> {
        let ask = Ask::get("/triggers".into()).query("workflow", workflow);
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn trigger_of(&self, trigger: &str) -> Result<Value> {
        self.data(Ask::get(format!("/triggers/{}", segment(trigger)))).await
    }

    pub async fn create_trigger(&self, request: &Value) -> Result<Value> {
        self.data(Ask::post("/triggers".into()).json(request)).await
    }

    /// `enable`, `disable` or `run`, with a body if there is something to say.
    pub async fn change_trigger(&self, trigger: &str, verb: &str, body: Option<&Value>) -> Result<Value> {
        let ask = Ask::post(format!("/triggers/{}/{verb}", segment(trigger)));
        self.data(match body {
            Some(body) => ask.json(body),
            None => ask,
        })
        .await
    }

    /// When it will fire next.
    pub async fn preview_trigger(&self, trigger: &str, count: Option<u32>) -> Result<Value> {
        self.data(Ask::get(format!("/triggers/{}/preview", segment(trigger))).query("count", count)).await
    }

    pub async fn deliveries(&self, trigger: &str, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<Value>> {
        let ask = Ask::get(format!("/triggers/{}/deliveries", segment(trigger)));
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn delete_trigger(&self, trigger: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/triggers/{}", segment(trigger)))).await.map(drop)
    }
}
