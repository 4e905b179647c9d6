//! Types of tasks, and the workers that claim them.

use crate::{Ask, Client, Result, segment};
use api::{Page, PauseRequest, ResumeRequest, TypeRequest, TypeView, WorkerView};
use reqwest::Method;

/// See [`Client::types`].
#[derive(Clone, Copy)]
pub struct Types<'c> {
    client: &'c Client,
}

impl Client {
    /// What is known about types of tasks, and how they are handed out.
    pub fn types(&self) -> Types<'_> {
        Types { client: self }
    }

    /// Workers heard of in the last day.
    pub async fn workers(&self, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<WorkerView>> {
        self.page(Ask::get("/workers".into()).query("limit", limit).query("cursor", cursor)).await
    }
}

impl Types<'_> {
    /// By name; with `prefix`, those that begin like this.
    pub async fn list(&self, prefix: Option<&str>, limit: Option<u32>, cursor: Option<&str>) -> Result<Page<TypeView>> {
        let ask = Ask::get("/types".into()).query("prefix", prefix);
        self.client.page(ask.query("limit", limit).query("cursor", cursor)).await
    }

    pub async fn get(&self, name: &str) -> Result<TypeView> {
        self.client.data(Ask::get(format!("/types/{}", segment(name)))).await
    }

    /// Says what is to be known about a type. What is left out stays.
    pub async fn put(&self, name: &str, request: &TypeRequest) -> Result<TypeView> {
        self.client.data(Ask::new(Method::PUT, format!("/types/{}", segment(name))).json(request)).await
    }

    /// Tasks of it are accepted, but not handed out until it is resumed.
    pub async fn pause(&self, name: &str, request: &PauseRequest) -> Result<TypeView> {
        self.client.data(Ask::post(format!("/types/{}/pause", segment(name))).json(request)).await
    }

    pub async fn resume(&self, name: &str, request: &ResumeRequest) -> Result<TypeView> {
        self.client.data(Ask::post(format!("/types/{}/resume", segment(name))).json(request)).await
    }
}
