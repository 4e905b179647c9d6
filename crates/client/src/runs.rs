//! Runs: list, show, compare, follow, wait, explain, cancel, pause, retry, replay, delete.

use crate::{Client, Error, Events, RequestBuilder, Result, segment};
use api::{
    CancelRequest, EventView, ExplainView, ForkRequest, MoveRequest, OverriddenView, OverrideRequest, Page,
    PauseRequest, ReplayRequest, ReplayedView, ResultRequest, RetryRequest, RunBulkRequest, RunBulkView, RunDiffView,
    RunForkView, RunMoveView, RunRetryView, RunStatusView, RunSummary, RunView, StepView, WaitSummaryView,
};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Which runs to list. Every field is optional.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// One or more statuses, such as `failed,timeout`.
    pub status: Option<String>,
    pub workflow: Option<String>,
    /// One or more forms, such as `graph,script`; single tasks have the form `task`.
    pub form: Option<String>,
    /// `key:value`
    pub label: Option<String>,
    /// A time, or how long ago, such as `1h`.
    pub since: Option<String>,
    pub until: Option<String>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

impl Client {
    pub async fn runs(&self, query: &RunQuery) -> Result<Page<RunSummary>> {
        let RunQuery { status, workflow, form, label, since, until, limit, cursor } = query;
        let request = RequestBuilder::get("/runs".into())
            .query("status", status.as_ref())
            .query("workflow", workflow.as_ref())
            .query("form", form.as_ref())
            .query("label", label.as_ref())
            .query("since", since.as_ref())
            .query("until", until.as_ref())
            .query("limit", limit.as_ref())
            .query("cursor", cursor.as_ref());
        self.page(request).await
    }

    pub async fn run(&self, run: &str) -> Result<RunView> {
        self.data(RequestBuilder::get(format!("/runs/{}", segment(run)))).await
    }

    /// The run as it was right after the event with this number.
    pub async fn run_at(&self, run: &str, seq: u64) -> Result<RunView> {
        self.data(RequestBuilder::get(format!("/runs/{}", segment(run))).query("at", Some(seq))).await
    }

    /// What changed in a run between two of its events, given by their numbers; without `to`, since `from`.
    pub async fn run_diff(&self, run: &str, from: u64, to: Option<u64>) -> Result<RunDiffView> {
        let request = RequestBuilder::get(format!("/runs/{}/diff", segment(run)));
        self.data(request.query("from", Some(from)).query("to", to)).await
    }

    /// The steps of a run, in the order of the definition.
    pub async fn steps(&self, run: &str) -> Result<Vec<StepView>> {
        Ok(self.page(RequestBuilder::get(format!("/runs/{}/steps", segment(run)))).await?.data)
    }

    /// What is inside of a step: the iterations of a loop (`orders`), or the steps of a group or an iteration
    /// (`orders[3]`). Without a key, the same as [`steps`](Self::steps).
    pub async fn steps_under(
        &self,
        run: &str,
        under: Option<&str>,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<StepView>> {
        let request = RequestBuilder::get(format!("/runs/{}/steps", segment(run)));
        self.page(request.query("under", under).query("limit", limit).query("cursor", cursor)).await
    }

    /// The events after number `after`.
    pub async fn events(&self, run: &str, after: u64, limit: Option<u32>) -> Result<Page<EventView>> {
        let request = RequestBuilder::get(format!("/runs/{}/events", segment(run)));
        self.page(request.query("cursor", Some(after)).query("limit", limit)).await
    }

    /// Streams every event after number `after`, including future ones, until the run has ended.
    pub async fn follow(&self, run: &str, after: u64) -> Result<Events> {
        Events::open(self.clone(), format!("/runs/{}/stream", segment(run)), after).await
    }

    /// Waits until the run has ended, whatever its outcome; [`Error::Late`] after `timeout`.
    pub async fn wait_for_run(&self, run: &str, timeout: Duration) -> Result<RunView> {
        let open_status = |view: &RunView| {
            let has_ended = matches!(&*view.status, "completed" | "failed" | "cancelled" | "timeout");
            (!has_ended).then(|| view.status.to_string())
        };
        self.wait(&format!("/runs/{}", segment(run)), run, timeout, open_status).await
    }

    /// Waits until the run has ended and returns its output; [`Error::Ended`] if it did not complete.
    pub async fn result<T: DeserializeOwned>(&self, run: &str, timeout: Duration) -> Result<T> {
        let view = self.wait_for_run(run, timeout).await?;
        if view.status == "completed" {
            return self.read(view.output);
        }
        let (code, message) = view.error.map(|error| (error.code, error.message)).unwrap_or_default();
        Err(Error::Ended { what: view.id, status: view.status.into_owned(), code, message })
    }

    /// Why a run, or one of its steps, is in its state, and which requests are possible. Lists every cause.
    pub async fn explain(&self, run: &str, step: Option<&str>) -> Result<ExplainView> {
        self.data(RequestBuilder::get(format!("/runs/{}/explain", segment(run))).query("step", step)).await
    }

    /// What the open runs of a workflow wait for.
    pub async fn explain_workflow(&self, workflow: &str) -> Result<WaitSummaryView> {
        let request = RequestBuilder::get("/explain".into()).query("workflow", Some(workflow));
        self.read(self.send_for_json(request).await?)
    }

    pub async fn cancel(&self, run: &str, request: &CancelRequest) -> Result<RunStatusView> {
        self.data(RequestBuilder::post(format!("/runs/{}/cancel", segment(run))).json(request)).await
    }

    /// No step of the run starts until it is resumed.
    pub async fn pause(&self, run: &str, request: &PauseRequest) -> Result<RunStatusView> {
        self.data(RequestBuilder::post(format!("/runs/{}/pause", segment(run))).json(request)).await
    }

    /// Goes on with a run that failed or timed out; of an open one, starts the next attempts of retrying steps now.
    pub async fn retry(&self, run: &str, request: &RetryRequest) -> Result<RunRetryView> {
        self.data(RequestBuilder::post(format!("/runs/{}/retry", segment(run))).json(request)).await
    }

    /// Skips a step of an open run. Like the two below, it changes nothing with `dry_run`, and says what would follow.
    pub async fn skip_step(&self, run: &str, step: &str, request: &OverrideRequest) -> Result<OverriddenView> {
        self.data(RequestBuilder::post(step_path(run, step, "skip")).json(request)).await
    }

    /// Lets a step of an open run succeed with a result.
    pub async fn set_step_result(&self, run: &str, step: &str, request: &ResultRequest) -> Result<OverriddenView> {
        self.data(RequestBuilder::post(step_path(run, step, "result")).json(request)).await
    }

    /// Ends the sleep of a step, or the time before its next attempt.
    pub async fn run_step_now(&self, run: &str, step: &str, request: &OverrideRequest) -> Result<OverriddenView> {
        self.data(RequestBuilder::post(step_path(run, step, "run-now")).json(request)).await
    }

    /// Starts a new run with the same input, on the same version or on the current one.
    pub async fn replay(&self, run: &str, request: &ReplayRequest) -> Result<ReplayedView> {
        self.data(RequestBuilder::post(format!("/runs/{}/replay", segment(run))).json(request)).await
    }

    /// Starts a new run that takes over results of one that has ended, and goes on from one of its steps.
    pub async fn fork(&self, run: &str, request: &ForkRequest) -> Result<RunForkView> {
        self.data(RequestBuilder::post(format!("/runs/{}/fork", segment(run))).json(request)).await
    }

    /// Goes on with another version of the workflow.
    pub async fn move_run(&self, run: &str, request: &MoveRequest) -> Result<RunMoveView> {
        self.data(RequestBuilder::post(format!("/runs/{}/move", segment(run))).json(request)).await
    }

    /// Cancels, retries or replays every run that matches a filter.
    pub async fn change_runs(&self, request: &RunBulkRequest) -> Result<RunBulkView> {
        self.data(RequestBuilder::post("/runs/bulk".into()).json(request)).await
    }

    /// Deletes a run that has ended.
    pub async fn delete_run(&self, run: &str) -> Result<()> {
        self.data::<Value>(RequestBuilder::new(Method::DELETE, format!("/runs/{}", segment(run)))).await.map(drop)
    }
}

fn step_path(run: &str, step: &str, verb: &str) -> String {
    format!("/runs/{}/steps/{}/{verb}", segment(run), segment(step))
}
