//! Versions of workflows, their differences, and graphs.

use crate::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One version of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VersionEntryView {
    pub number: u32,
    /// `sha256:<hex>` of the canonical definition.
    pub hash: String,
    /// The request that created it: `create` or `update`.
    pub source: String,
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
}

/// The differences between two versions of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiffView {
    pub from: VersionEntryView,
    pub to: VersionEntryView,
    pub steps: StepsDiffView,
    /// Fields of the definition other than its steps and names.
    pub settings: Vec<FieldDiffView>,
    /// A unified diff of both definitions as JSON, with the fields in the author's order.
    pub text: String,
}

/// The steps that were added, removed or changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepsDiffView {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<StepDiffView>,
}

/// The fields of a step that differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepDiffView {
    pub step: String,
    pub fields: Vec<FieldDiffView>,
}

/// A field that differs. Without `old` it was added, without `new` it was removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldDiffView {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// The steps of a workflow or of a run, and how they depend on each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Word>,
    pub nodes: Vec<GraphNodeView>,
    pub edges: Vec<GraphEdgeView>,
}

/// A step as a node of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphNodeView {
    pub step: String,
    pub kind: Word,
    /// The group or loop that it is inside of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Word>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// In a graph of a run: the iterations of a loop by status, or the present steps of a node inside a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BTreeMap<String, u32>>,
    pub needs: Vec<String>,
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The position in the definition, from 0.
    pub position: usize,
}

/// A dependency: `to` needs `from`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEdgeView {
    pub from: String,
    pub to: String,
    /// `ok` if `to` starts only after `from` succeeded, `any` if it may start however `from` ended.
    pub on: Word,
}
