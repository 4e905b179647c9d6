//! The statuses of runs, steps and tasks. The database, the API, the docs and the filters all use these lists.

names! {
    /// The status of a run. `Waiting` exactly when no step is ready, queued or executing.
    pub enum RunStatus {
        Pending = 1 "pending",
        Running = 2 "running",
        Waiting = 3 "waiting",
        Compensating = 4 "compensating",
        Cancelling = 5 "cancelling",
        Completed = 6 "completed",
        Failed = 7 "failed",
        Cancelled = 8 "cancelled",
        Timeout = 9 "timeout",
    }
}

impl RunStatus {
    /// A terminal status never changes.
    pub fn is_terminal(self) -> bool {
        match self {
            RunStatus::Pending
            | RunStatus::Running
            | RunStatus::Waiting
            | RunStatus::Compensating
            | RunStatus::Cancelling => false,
            RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled | RunStatus::Timeout => true,
        }
    }

    /// Whether tasks of a run with this status may wait for workers.
    pub fn may_have_tasks(self) -> bool {
        matches!(self, RunStatus::Running | RunStatus::Compensating)
    }

    /// Whether a run with this status may be evicted from memory: an input or a timer row will wake it.
    pub fn is_evicted(self) -> bool {
        matches!(self, RunStatus::Waiting | RunStatus::Pending | RunStatus::Cancelling)
    }
}

names! {
    /// The status of a step, as users and conditions see it.
    pub enum StepStatus {
        Pending = 1 "pending",
        Running = 2 "running",
        Retrying = 3 "retrying",
        Sleeping = 4 "sleeping",
        Waiting = 5 "waiting",
        Success = 6 "success",
        Received = 7 "received",
        Failed = 8 "failed",
        Timeout = 9 "timeout",
        Skipped = 10 "skipped",
        Cancelled = 11 "cancelled",
        TemplateError = 12 "template_error",
    }
}

names! {
    /// How a step ended, as the links of a plan see it.
    pub enum Outcome {
        Ok = 1 "ok",
        Failed = 2 "failed",
        TimedOut = 3 "timed_out",
        Skipped = 4 "skipped",
        Cancelled = 5 "cancelled",
    }
}

impl StepStatus {
    /// `None` while the step has not settled.
    pub fn outcome(self) -> Option<Outcome> {
        match self {
            StepStatus::Pending
            | StepStatus::Running
            | StepStatus::Retrying
            | StepStatus::Sleeping
            | StepStatus::Waiting => None,
            StepStatus::Success | StepStatus::Received => Some(Outcome::Ok),
            StepStatus::Failed | StepStatus::TemplateError => Some(Outcome::Failed),
            StepStatus::Timeout => Some(Outcome::TimedOut),
            StepStatus::Skipped => Some(Outcome::Skipped),
            StepStatus::Cancelled => Some(Outcome::Cancelled),
        }
    }
}

/// The canonical word for a status in a comparison or a `?status=` filter: users write `success`, `succeeded`,
/// `completed` and `received` for the same status.
pub fn canonical_step_status(word: &str) -> &str {
    match word {
        "succeeded" | "completed" | "received" => "success",
        other => other,
    }
}

names! {
    /// The status of a task, as the tasks API shows it.
    pub enum TaskStatus {
        Pending = 1 "pending",
        Leased = 2 "leased",
        Succeeded = 3 "succeeded",
        Failed = 4 "failed",
        Cancelled = 5 "cancelled",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for status in RunStatus::ALL {
            assert_eq!(RunStatus::parse(status.as_str()), Some(*status));
        }
        for status in StepStatus::ALL {
            assert_eq!(StepStatus::parse(status.as_str()), Some(*status));
        }
        assert_eq!(RunStatus::parse("paused"), None);
    }
}
