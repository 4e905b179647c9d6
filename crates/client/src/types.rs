//! Task types, and the workers that claim them.

use crate::{Client, RequestBuilder, Result, segment};
use api::{Page, PauseRequest, ResumeRequest, TypeRequest, TypeView, WorkerView};
use reqwest::Method;

/// See [`Client::types`].
#[derive(Clone, Copy)]
pub struct Types<'c> {
    client: &'c Client,
}

impl Client {
    /// Manages task types.
    pub fn types(&self) -> Types<'_> {
        Types { client: self }
    }

    /// The workers seen in the last day.
    pub async fn workers(&self, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<WorkerView>> {
        self.page(RequestBuilder::get("/workers".into()).query("limit", limit).query("cursor", cursor)).await
    }
}

impl Types<'_> {
    /// Types in the order of their names; with `prefix`, only the types that start with it.
    pub async fn list(&self, prefix: Option<&str>, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<TypeView>> {
        let request = RequestBuilder::get("/types".into()).query("prefix", prefix);
        self.client.page(request.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn get(&self, task_type: &str) -> Result<TypeView> {
        self.client.data(RequestBuilder::get(format!("/types/{}", segment(task_type)))).await
    }

    /// Registers or changes a type. A field that is left out keeps its value.
    pub async fn put(&self, task_type: &str, request: &TypeRequest) -> Result<TypeView> {
        self.client.data(RequestBuilder::new(Method::PUT, format!("/types/{}", segment(task_type))).json(request)).await
    }

    /// Tasks of the type are accepted, but no worker gets one until the type is resumed.
    pub async fn pause(&self, task_type: &str, request: &PauseRequest) -> Result<TypeView> {
        self.client.data(RequestBuilder::post(format!("/types/{}/pause", segment(task_type))).json(request)).await
    }

    pub async fn resume(&self, task_type: &str, request: &ResumeRequest) -> Result<TypeView> {
        self.client.data(RequestBuilder::post(format!("/types/{}/resume", segment(task_type))).json(request)).await
    }
}
