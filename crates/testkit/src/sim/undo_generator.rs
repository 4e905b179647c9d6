//! Which steps of a generated workflow can be undone, and by what; and which of them are marked as ones that cannot.
//!
//! It writes only what `lang` accepts: a step that does nothing outside of its run has no `compensate`, an irreversible
//! step has none either, and only requests and tasks have an outcome that can be unknown.

use super::random::Random;
use super::workflow_generator::{
    GeneratedStep, StepKind, TestWorkflow, TriggerPart, UndoSettings, WorkerTask, draw_retry,
};

impl TestWorkflow {
    /// Adds steps that undo others. All other steps must exist already, with their final kinds.
    pub fn add_undos(&mut self, random: &mut Random, has_tasks: bool) {
        if self.is_single_task {
            return;
        }
        let share = random.pick(&[100, 400, 800]);
        for i in 0..self.steps.len() {
            let kind = self.steps[i].kind;
            if random.chance(100) {
                let is_irreversible = random.chance(700);
                self.steps[i].undo =
                    UndoSettings { is_irreversible, is_not_compensatable: !is_irreversible, ..Default::default() };
            } else if random.chance(share) && can_be_undone(kind) {
                let has_attempts = matches!(kind, StepKind::Http(_) | StepKind::Task(_));
                let (by, if_unknown) = (Some(self.steps.len()), has_attempts && random.chance(400));
                self.steps[i].undo = UndoSettings { by, if_unknown, ..Default::default() };
                self.steps.push(draw_undo(random, i, has_tasks));
            }
        }
    }

    /// Can any of its steps be undone?
    pub fn can_undo(&self) -> bool {
        self.steps.iter().any(|step| step.undo.by.is_some())
    }
}

/// Does a step of this kind do something outside of its run?
fn can_be_undone(kind: StepKind) -> bool {
    !matches!(kind, StepKind::Noop | StepKind::Set { .. } | StepKind::Sleep(_) | StepKind::Pause(_))
}

fn draw_undo(random: &mut Random, undoes: usize, has_tasks: bool) -> GeneratedStep {
    let kind = match random.below(10) {
        0 => StepKind::Noop,
        1..=5 if has_tasks => {
            let reads = random.pick(&[TriggerPart::Nothing, TriggerPart::Nothing, TriggerPart::Flag]);
            StepKind::Task(WorkerTask { reads, ..WorkerTask::draw(random) })
        }
        _ => StepKind::Http(random.pick(&[TriggerPart::Nothing, TriggerPart::Nothing, TriggerPart::Note])),
    };
    let undo = UndoSettings { undoes: Some(undoes), ..Default::default() };
    GeneratedStep { retry: draw_retry(random), undo, ..GeneratedStep::simple(kind, Vec::new()) }
}
