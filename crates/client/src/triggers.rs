//! Triggers: schedules, webhooks and what came through them.

use crate::{Ask, Client, Definition, Result, segment};
use api::{DeliveredView, DeliveryView, FireRequest, MomentView, Page, StartedView, SwitchRequest, TriggerDetail};
use reqwest::Method;
use serde_json::Value;

impl Client {
    pub async fn triggers(
        &self,
        workflow: Option<&str>,
        kind: Option<&str>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<TriggerDetail>> {
        let ask = Ask::get("/triggers".into()).query("workflow", workflow).query("type", kind);
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn show_trigger(&self, trigger: &str) -> Result<TriggerDetail> {
        self.data(Ask::get(format!("/triggers/{}", segment(trigger)))).await
    }

    /// `{name, type, workflow, config, …}`, in JSON or YAML.
    pub async fn create_trigger(&self, definition: &Definition) -> Result<TriggerDetail> {
        self.data(Ask::post("/triggers".into()).definition(definition)).await
    }

    /// May it start runs? A note says why.
    pub async fn switch_trigger(
        &self,
        trigger: &str,
        is_enabled: bool,
        request: &SwitchRequest,
    ) -> Result<TriggerDetail> {
        let verb = if is_enabled { "enable" } else { "disable" };
        self.data(Ask::post(format!("/triggers/{}/{verb}", segment(trigger))).json(request)).await
    }

    /// Fires it now, with `variables` as the run's `trigger.body`.
    pub async fn run_trigger(&self, trigger: &str, request: &FireRequest) -> Result<StartedView> {
        self.data(Ask::post(format!("/triggers/{}/run", segment(trigger))).json(request)).await
    }

    /// When a schedule will fire next.
    pub async fn preview_trigger(&self, trigger: &str, count: Option<u32>) -> Result<Vec<MomentView>> {
        let ask = Ask::get(format!("/triggers/{}/preview", segment(trigger))).query("count", count);
        Ok(self.page(ask).await?.data)
    }

    pub async fn deliveries(
        &self,
        trigger: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<DeliveryView>> {
        let ask = Ask::get(format!("/triggers/{}/deliveries", segment(trigger)));
        self.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    /// Starts a run with what came in an earlier delivery.
    pub async fn redeliver(&self, trigger: &str, delivery: &str) -> Result<DeliveredView> {
        let path = format!("/triggers/{}/deliveries/{}/redeliver", segment(trigger), segment(delivery));
        self.data(Ask::post(path)).await
    }

    pub async fn delete_trigger(&self, trigger: &str) -> Result<()> {
        self.data::<Value>(Ask::new(Method::DELETE, format!("/triggers/{}", segment(trigger)))).await.map(drop)
    }
}
