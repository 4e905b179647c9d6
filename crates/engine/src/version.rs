//! One immutable version of a workflow, with its compiled plan.

use crate::error::Error;
use kernel::run::Plans;
use kernel::{OrgId, Plan, WorkflowId};
use lang::{Budget, InputSchema};
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub struct Version {
    pub org: OrgId,
    pub workflow: WorkflowId,
    pub name: String,
    pub number: u32,
    pub hash: [u8; 32],
    /// Which lowering of the definition made the plan.
    pub lowering: u32,
    pub plan: Arc<Plan>,
    /// The steps in the order in which the author of this version wrote them.
    pub order: Vec<u32>,
    pub input: InputCheck,
}

/// What the bodies of new runs must fit. Compiled for the first of them: a version that is read because of its runs may
/// never get another.
#[derive(Debug, Default)]
pub struct InputCheck {
    /// The `input` of the definition, as JSON.
    text: Option<String>,
    schema: OnceLock<Result<InputSchema, String>>,
}

impl InputCheck {
    pub fn of(definition: &[u8]) -> InputCheck {
        let definition = serde_json::from_slice::<serde_json::Value>(definition).ok();
        let text = definition.as_ref().and_then(|fields| fields.get("input")).map(ToString::to_string);
        InputCheck { text, schema: OnceLock::new() }
    }

    /// Whether any body fits, without a check.
    pub fn is_free(&self) -> bool {
        self.text.is_none()
    }

    pub fn check(&self, body: &[u8], budget: &mut Budget) -> Result<(), Error> {
        let Some(text) = &self.text else { return Ok(()) };
        match self.schema.get_or_init(|| InputSchema::stored(text.as_bytes())) {
            Ok(schema) => schema.check(body, budget).map_err(Error::InvalidInput),
            Err(why) => Err(Error::Refused(format!("the workflow's `input` schema cannot be read: {why}"))),
        }
    }
}

/// The versions that a run had, each from an event on: one, unless the run was moved to another.
#[derive(Clone, Debug)]
pub struct RunVersions(Vec<(u64, Arc<Version>)>);

impl RunVersions {
    pub fn only(version: Arc<Version>) -> RunVersions {
        RunVersions(vec![(0, version)])
    }

    /// `first`, and those that the run was moved to, each with the event that moved it.
    pub fn new(first: Arc<Version>, moves: Vec<(u64, Arc<Version>)>) -> RunVersions {
        RunVersions(std::iter::once((0, first)).chain(moves).collect())
    }

    /// The version that an event belongs to.
    pub fn at(&self, seq: u64) -> &Arc<Version> {
        let after = self.0.partition_point(|(first, _)| *first <= seq);
        &self.0[after - 1].1
    }

    pub fn plans(&self) -> Plans<'_> {
        Plans::new(self.0.iter().map(|(first, version)| (*first, &*version.plan)).collect())
    }
}

impl Version {
    /// The order of the plan's steps in the author's own text. Plans are stored once for all definitions with the same
    /// hash, whatever the order of their steps.
    pub fn order(plan: &Plan, source: Option<&[u8]>) -> Vec<u32> {
        let source = source.and_then(|source| serde_json::from_slice::<serde_json::Value>(source).ok());
        let names = source.as_ref().and_then(|source| source["tasks"].as_object());
        let written: Vec<u32> = names.into_iter().flat_map(|names| names.keys()).filter_map(|n| plan.find(n)).collect();
        match written.len() == plan.root().len() {
            true => written,
            false => (0..plan.root().len() as u32).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_steps_have_the_order_of_the_versions_own_text() {
        let plan = |source: &str| {
            let tree = lang::read(source.as_bytes(), lang::Syntax::Json).unwrap();
            lang::compile(&tree).unwrap().plan
        };
        let text = r#"{"name": "w", "tasks": {"b": {"noop": {}}, "a": {"noop": {}}}}"#;
        let plan = plan(r#"{"name": "w", "tasks": {"a": {"noop": {}}, "b": {"noop": {}}}}"#);
        assert_eq!(Version::order(&plan, Some(text.as_bytes())), [1, 0]);
        assert_eq!(Version::order(&plan, None), [0, 1]);
        assert_eq!(Version::order(&plan, Some(br#"{"tasks": {"b": {}}}"#)), [0, 1], "of another plan");
    }
}
