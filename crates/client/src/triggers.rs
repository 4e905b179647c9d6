//! Triggers: schedules, webhooks and manual triggers, and their deliveries.

use crate::{Client, Definition, RequestBuilder, Result, segment};
use api::{DeliveredView, DeliveryView, FireRequest, FireTimeView, Page, StartedView, SwitchRequest, TriggerDetail};
use reqwest::Method;
use serde_json::Value;

impl Client {
    pub async fn triggers(
        &self,
        workflow: Option<&str>,
        trigger_type: Option<&str>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<TriggerDetail>> {
        let request = RequestBuilder::get("/triggers".into()).query("workflow", workflow).query("type", trigger_type);
        self.page(request.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn show_trigger(&self, trigger: &str) -> Result<TriggerDetail> {
        self.data(RequestBuilder::get(format!("/triggers/{}", segment(trigger)))).await
    }

    /// Creates a trigger from `{name, type, workflow, config, …}`, in JSON or YAML.
    pub async fn create_trigger(&self, definition: &Definition) -> Result<TriggerDetail> {
        self.data(RequestBuilder::post("/triggers".into()).definition(definition)).await
    }

    /// Enables or disables a trigger. The request may have a note that says why.
    pub async fn switch_trigger(
        &self,
        trigger: &str,
        is_enabled: bool,
        request: &SwitchRequest,
    ) -> Result<TriggerDetail> {
        let verb = if is_enabled { "enable" } else { "disable" };
        self.data(RequestBuilder::post(format!("/triggers/{}/{verb}", segment(trigger))).json(request)).await
    }

    /// Fires a trigger now, with `variables` as the run's `trigger.body`.
    pub async fn run_trigger(&self, trigger: &str, request: &FireRequest) -> Result<StartedView> {
        self.data(RequestBuilder::post(format!("/triggers/{}/run", segment(trigger))).json(request)).await
    }

    /// The next fire times of a schedule.
    pub async fn preview_trigger(&self, trigger: &str, count: Option<u32>) -> Result<Vec<FireTimeView>> {
        let request = RequestBuilder::get(format!("/triggers/{}/preview", segment(trigger))).query("count", count);
        Ok(self.page(request).await?.data)
    }

    pub async fn deliveries(
        &self,
        trigger: &str,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Page<DeliveryView>> {
        let request = RequestBuilder::get(format!("/triggers/{}/deliveries", segment(trigger)));
        self.page(request.query("limit", limit).query("cursor", cursor)).await
    }

    /// Starts another run from the stored request of an earlier delivery.
    pub async fn redeliver(&self, trigger: &str, delivery: &str) -> Result<DeliveredView> {
        let path = format!("/triggers/{}/deliveries/{}/redeliver", segment(trigger), segment(delivery));
        self.data(RequestBuilder::post(path)).await
    }

    pub async fn delete_trigger(&self, trigger: &str) -> Result<()> {
        self.data::<Value>(RequestBuilder::new(Method::DELETE, format!("/triggers/{}", segment(trigger))))
            .await
            .map(drop)
    }
}
