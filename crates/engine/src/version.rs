//! One immutable version of a workflow, with its compiled plan.

use kernel::{OrgId, Plan, WorkflowId};
use std::sync::Arc;

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
}
