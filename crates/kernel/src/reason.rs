//! Why a run or a step is where it is: the codes that `explain` answers with.

words! {
    pub enum Reason {
        /// The run waits for `run_at`.
        ScheduledForLater = "scheduled_for_later",
        /// A limit holds the run or the step back: the workflow's `concurrency`, the limits of a task type (or that it is paused or disabled), or the limit on HTTP requests. `details.limit` says which.
        QueuedByLimit = "queued_by_limit",
        /// The run, its workflow or a `pause` step waits to be resumed. `details.target` says which.
        PausedForManualAction = "paused_for_manual_action",
        /// The run or the step is about to continue.
        PendingDispatch = "pending_dispatch",
        /// The step is ready and waits for a node to execute it.
        StepScheduled = "step_scheduled",
        /// An attempt is in progress.
        StepRunning = "step_running",
        /// The task is ready and waits for a worker to claim it. `details` has the type and when a worker was last seen.
        WaitingForWorker = "waiting_for_worker",
        /// The step waits for the steps it needs. `details.waiting_on` lists them.
        WaitingForDependencies = "waiting_for_dependencies",
        /// The step sleeps until `details.until`.
        SleepingUntil = "sleeping_until",
        /// The step waits for a callback. `details` has its URL and the deadline.
        WaitingForWebhook = "waiting_for_webhook",
        /// The step waits for a signal. `details` has its name and the deadline.
        WaitingForSignal = "waiting_for_signal",
        /// The step waits for an approval. `details` has what is to be approved, who may decide and the deadline.
        PausedForApproval = "paused_for_approval",
        /// The step waits for the end of a run that it started. `details` has its id and its workflow.
        WaitingForChild = "waiting_for_child",
        /// The run was cancelled, and ends when the runs that it started have. `details.children` lists them.
        Cancelling = "cancelling",
        /// The run undoes what it did. `details` has the step that is being undone and those that are left, and how the run ends afterwards.
        Compensating = "compensating",
        /// The last attempt failed; the next one starts at `details.at`.
        WaitingForRetry = "waiting_for_retry",
        /// A later release wrote a step that this release does not understand.
        WaitingForUpgrade = "waiting_for_upgrade",
        /// The run completed, or the step succeeded.
        Completed = "completed",
        /// The step failed with an error that is not retried.
        StepFailed = "step_failed",
        /// The step failed on every attempt that its retry policy allows.
        RetryExhausted = "retry_exhausted",
        /// A template of the step could not be filled in.
        TemplateError = "template_error",
        /// The step timed out.
        StepTimeout = "step_timeout",
        /// The condition of the step was false. `details` has the expression and the values it read.
        SkippedByCondition = "skipped_by_condition",
        /// A step that this step needs did not succeed. `details.needs` has their statuses.
        SkippedByNeeds = "skipped_by_needs",
        /// The step was skipped for a reason that this release does not know.
        Skipped = "skipped",
        /// The run was cancelled, or the step ended with its run. For a run, `details.by` and `details.reason` say why.
        Cancelled = "cancelled",
        /// The run did not finish within `max_duration`. `details.unfinished_steps` lists what was not done.
        Expired = "expired",
    }
}
