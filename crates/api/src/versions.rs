//! How versions, what differs between them, and graphs are shown.

use crate::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One edition of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VersionEntryView {
    pub number: u32,
    pub hash: String,
    /// What made it: `create` or `update`.
    pub source: String,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
}

/// What differs between two versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffView {
    pub from: VersionEntryView,
    pub to: VersionEntryView,
    pub steps: StepsDiffView,
    /// Fields beside the steps.
    pub settings: Vec<FieldDiffView>,
    /// Both as JSON in the author's order, as a unified diff.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepsDiffView {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<StepDiffView>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDiffView {
    pub step: String,
    pub fields: Vec<FieldDiffView>,
}

/// A field that was there and is not, is there and was not, or has another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDiffView {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Word>,
    pub nodes: Vec<GraphNodeView>,
    pub edges: Vec<GraphEdgeView>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphNodeView {
    pub step: String,
    pub kind: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    pub needs: Vec<String>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// In the order of declaration, from 0.
    pub position: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEdgeView {
    pub from: String,
    pub to: String,
    /// `ok`: taken when the step it comes from succeeds; `any`: whatever becomes of it.
    pub on: Word,
}
