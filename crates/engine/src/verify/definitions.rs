//! Checks of workflows, versions, definitions and triggers: versions are numbered without gaps, and each definition has
//! the hash that names it.

use super::{Code, Report};
use kernel::{OrgId, Plan, WorkflowId};
use lang::trigger::Spec;
use std::collections::HashMap;
use std::sync::Arc;
use store::inspect::{Catalogued, Inspection, TriggerSeen};
use store::{Error, StoredDefinition};

/// PlanCache in the cache; when it is full, it is cleared.
const PLANS_MAX: usize = 256;

type VersionKey = (OrgId, WorkflowId);
/// The hash of a definition, and the lowering.
type PlanKey = (OrgId, [u8; 32], u32);

pub(super) fn check(inspection: &dyn Inspection, report: &mut Report) -> Result<(), Error> {
    // The inspection yields workflows first, then their versions, counted from 1.
    let mut histories: HashMap<VersionKey, VersionHistory> = HashMap::new();
    let mut wanted = Vec::new();
    inspection.catalog(&mut |row| match row {
        Catalogued::Anomaly(anomaly) => report.add(anomaly.into()),
        Catalogued::Workflow { org, id, version, hash } => {
            report.counts.workflows += 1;
            histories.insert((org, id), VersionHistory { version, hash, seen: 0, newest: None });
        }
        Catalogued::Version { org, workflow, number, hash, source } => {
            report.counts.versions += 1;
            if let Some(source) = source {
                check_source(org, &format!("version {number} of {workflow}"), &source, &hash, report);
            }
            wanted.push((org, hash));
            match histories.get_mut(&(org, workflow)) {
                None => {
                    let message = format!("version {number} is of the workflow {workflow}, which does not exist");
                    report.say(Code::Dangling, Some(org), message);
                }
                Some(history) => history.add(org, workflow, number, hash, report),
            }
        }
        Catalogued::Definition { org, definition } => {
            report.counts.definitions += 1;
            check_definition(org, &definition, report);
        }
        Catalogued::Trigger(trigger) => {
            report.counts.triggers += 1;
            if !histories.contains_key(&(trigger.org, trigger.workflow)) {
                let message = format!("{} is of the workflow {}, which does not exist", trigger.id, trigger.workflow);
                report.say(Code::Dangling, Some(trigger.org), message);
            }
            check_trigger(&trigger, report);
        }
    })?;
    for ((org, id), history) in histories {
        history.end(org, id, report);
    }
    wanted.sort_unstable();
    wanted.dedup();
    for (org, hash) in wanted {
        if inspection.definition(org, &hash, None)?.is_none() {
            let message = format!("the definition {} of a version does not exist", hex(&hash));
            report.say(Code::DefinitionMissing, Some(org), message);
        }
    }
    Ok(())
}

/// A workflow, and the versions that were seen of it so far.
struct VersionHistory {
    version: u32,
    hash: [u8; 32],
    seen: u32,
    newest: Option<[u8; 32]>,
}

impl VersionHistory {
    fn add(&mut self, org: OrgId, workflow: WorkflowId, number: u32, hash: [u8; 32], report: &mut Report) {
        self.seen += 1;
        if number != self.seen {
            let message = format!("{workflow} has version {number} where version {} is expected", self.seen);
            report.say(Code::VersionLine, Some(org), message);
            self.seen = number;
        }
        self.newest = Some(hash);
    }

    fn end(self, org: OrgId, workflow: WorkflowId, report: &mut Report) {
        if self.seen != self.version {
            let message = format!("{workflow} is at version {}, its newest is {}", self.version, self.seen);
            report.say(Code::VersionLine, Some(org), message);
        } else if self.newest != Some(self.hash) {
            let message = format!("{workflow} names {} as its definition, its newest version another", hex(&self.hash));
            report.say(Code::VersionMissing, Some(org), message);
        }
    }
}

fn check_definition(org: OrgId, definition: &StoredDefinition, report: &mut Report) {
    let name = hex(&definition.hash);
    if let Err(error) = Plan::decode(&definition.plan) {
        report.say(Code::DefinitionDamaged, Some(org), format!("the plan of {name}: {error}"));
    }
    check_source(org, &name, &definition.source, &definition.hash, report);
}

fn check_source(org: OrgId, name: &str, source: &[u8], hash: &[u8; 32], report: &mut Report) {
    match lang::read(source, lang::Syntax::Json) {
        Err(_) => report.say(Code::DefinitionDamaged, Some(org), format!("the source of {name} is not JSON")),
        Ok(tree) if lang::content_hash(&tree) != *hash => {
            let message = format!("the source of {name} has the hash {}", hex(&lang::content_hash(&tree)));
            report.say(Code::DefinitionHash, Some(org), message);
        }
        Ok(_) => {}
    }
}

/// A trigger's settings must be readable, and exactly the enabled schedules have a next fire time.
fn check_trigger(trigger: &TriggerSeen, report: &mut Report) {
    let what = match lang::trigger::stored(trigger.kind, &trigger.config) {
        None => "its settings cannot be read",
        Some(Spec::Schedule(_)) if trigger.enabled && trigger.next_at.is_none() => "it has no next fire time",
        Some(Spec::Schedule(_)) if trigger.enabled => return,
        Some(_) if trigger.next_at.is_some() => "it has a next fire time, but is not an enabled schedule",
        Some(_) => return,
    };
    report.say(Code::TriggerWrong, Some(trigger.org), format!("{}: {what}", trigger.id));
}

/// The plans of runs, cached.
pub(super) struct PlanCache<'i> {
    inspection: &'i dyn Inspection,
    known: HashMap<PlanKey, Result<Arc<Plan>, NoPlan>>,
}

/// Why a run has no plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlan {
    Missing,
    /// Reported with its definition.
    Damaged,
}

impl<'i> PlanCache<'i> {
    pub(super) fn new(inspection: &'i dyn Inspection) -> PlanCache<'i> {
        PlanCache { inspection, known: HashMap::new() }
    }

    pub(super) fn get(
        &mut self,
        org: OrgId,
        hash: [u8; 32],
        lowering: u32,
    ) -> Result<Result<Arc<Plan>, NoPlan>, Error> {
        if let Some(plan) = self.known.get(&(org, hash, lowering)) {
            return Ok(plan.clone());
        }
        let plan = match self.inspection.definition(org, &hash, Some(lowering))? {
            None => Err(NoPlan::Missing),
            Some(definition) => Plan::decode(&definition.plan).map(Arc::new).map_err(|_| NoPlan::Damaged),
        };
        if self.known.len() >= PLANS_MAX {
            self.known.clear();
        }
        self.known.insert((org, hash, lowering), plan.clone());
        Ok(plan)
    }
}

pub(super) fn hex(hash: &[u8; 32]) -> String {
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "…"
}
