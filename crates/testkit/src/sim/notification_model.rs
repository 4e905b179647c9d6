//! Notifications when a run ends: a simulation of the engine's outbox, and the rules for it.
//!
//! ```text
//!   Released.notices ────────┐
//!                            ├─▶ Notify ──load the run──▶ start the run that sends it
//!   ScanOutbox (every 10 s) ─┘
//! ```
//!
//! It does what `engine/src/services/outbox.rs` does. Invariant: from the commit that ends a run, each of its
//! notifications is either a row or exactly one run that sends it, whatever crashes.

use super::client_log::ClientRequest;
use super::process::ProcessEvent;
use super::trigger::Trigger;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::world::{SimEvent, World, ready};
use engine::mailbox::Command;
use engine::services::RETRY_EVERY;
use kernel::advance::{NotificationNumber, notifications};
use kernel::{OrgId, RunId};
use std::collections::BTreeMap;
use store::prelude::*;
use store::{MemoryStore, NotificationRow};

/// How many rows one scan reads.
const PAGE: usize = 1_000;

/// Identifies a notification: the run that ended, and a number.
pub type NotificationId = (RunId, u64);

#[derive(Default)]
pub struct NotificationModel {
    /// Every notification that must be sent, and the run that sends it.
    expected: BTreeMap<NotificationId, Option<RunId>>,
    /// The notification that a run sends, if the run comes to exist.
    senders: BTreeMap<RunId, NotificationId>,
}

impl NotificationModel {
    /// Registers a run that is about to be started for a notification.
    pub fn expect_run(&mut self, sender: RunId, notification: NotificationId) {
        self.senders.insert(sender, notification);
    }

    pub fn sent_by(&self, sender: RunId) -> Option<NotificationId> {
        self.senders.get(&sender).copied()
    }

    pub fn all_sent(&self) -> bool {
        self.expected.values().all(Option::is_some)
    }

    /// A run has ended with this event and must send `count` notifications. Those of an earlier end may be left.
    pub fn run_ended(&mut self, run: RunId, end: u64, count: u32, store: &MemoryStore) -> CheckResult {
        let mut rows = rows(store, run);
        rows.retain(|number| !self.expected.contains_key(&(run, *number)));
        for number in &rows {
            self.expected.entry((run, *number)).or_default();
        }
        let numbers = rows.iter().map(|number| NotificationNumber::read(*number));
        let is_of_end = numbers.clone().all(|number| number.end == Some(end));
        let is_written = numbers.map(|number| number.index).eq(0..u64::from(count)) && is_of_end;
        ViolationKind::Lost.unless(is_written, || {
            format!("{run} has ended with event {end}: {count} notifications expected, the new rows are {rows:?}")
        })
    }

    /// A run was created; it may send a notification.
    pub fn run_created(&mut self, sender: RunId, store: &MemoryStore) -> CheckResult {
        let Some(notification) = self.sent_by(sender) else { return Ok(()) };
        let Some(sent_by) = self.expected.get_mut(&notification) else {
            return Err(Violation {
                kind: ViolationKind::Early,
                message: format!("{sender} sends {notification:?}, which does not exist"),
            });
        };
        let other = sent_by.replace(sender);
        ViolationKind::Duplicated
            .unless(other.is_none(), || format!("{notification:?} is sent by {sender} and by {other:?}"))?;
        let is_left = rows(store, notification.0).contains(&notification.1);
        require(!is_left, || format!("{notification:?} is sent by {sender}, but its row still exists"))
    }

    /// Checks that every notification that was not sent still has its row.
    pub fn check_none_lost(&self, store: &MemoryStore) -> CheckResult {
        for ((run, number), _) in self.expected.iter().filter(|(_, sent_by)| sent_by.is_none()) {
            let is_kept = rows(store, *run).contains(number);
            ViolationKind::Lost.unless(is_kept, || format!("notification {number} of {run} is lost"))?;
        }
        Ok(())
    }
}

fn rows(store: &MemoryStore, run: RunId) -> Vec<u64> {
    let rows = ready(store.run_notifications(OrgId::DEFAULT, run)).expect("the memory store answers");
    rows.into_iter().map(|row| row.number).collect()
}

impl World {
    /// Schedules every notification that still has a row.
    pub fn scan_outbox(&mut self, process: usize) {
        if !self.is_store_down() {
            for NotificationRow { run, number, .. } in ready(self.store.notifications(None, PAGE)).unwrap_or_default() {
                self.push_soon(process, ProcessEvent::Notify { run, number });
            }
        }
        self.push(RETRY_EVERY, SimEvent::Process(process, ProcessEvent::ScanOutbox));
    }

    /// Tries to send a notification once. If that fails, its row remains for the next scan.
    pub fn notify(&mut self, process: usize, run: RunId, number: u64) -> CheckResult {
        if self.processes[process].is_draining {
            return Ok(());
        }
        let resumed = match self.load(process, run) {
            Ok(resumed) => resumed,
            Err(trouble) => {
                self.record_notification_error(run, number, format!("{trouble:?}"));
                return Ok(());
            }
        };
        // Another process may have sent it, and the run was deleted since.
        if self.checker.is_erased(run) {
            return Ok(());
        }
        let resumed = resumed.ok_or_else(|| format!("a notification about {run}, which does not exist"))?;
        let NotificationNumber { end, index } = NotificationNumber::read(number);
        // The run may have gone on since: the notification is about the end that it names.
        let at_end = end.and_then(|end| self.checker.as_it_was(run, end));
        let at_end =
            at_end.ok_or_else(|| format!("a notification about event {end:?} of {run}, which has none such"))?;
        self.trace
            .mark("a notification was about an end before the last one", at_end.state.seq < resumed.run.state.seq);
        let listed = notifications(&resumed.version.plan, &at_end);
        let Some(notify) = listed.get(index as usize) else {
            let message = format!("a notification about the end of {run}, which is {}", at_end.status());
            return Err(Violation { kind: ViolationKind::Early, message });
        };
        let name = if notify.url.is_empty() { &notify.workflow } else { super::world::NOTIFIER };
        let Some(found) = self.resolve(process, name)? else {
            self.trace.mark("a notification had to wait for its workflow", true);
            self.record_notification_error(run, number, format!("there is no workflow {name}"));
            return Ok(());
        };
        let group = self.limits_random.below(2);
        let trigger = Trigger::draw(&mut self.limits_random, group);
        let sender = RunId::new(self.now, self.limits_random.bytes());
        let body = self.expect_run(sender, trigger, name, false);
        self.checker.notifications.expect_run(sender, (run, number));
        let request = ClientRequest::Notify { run: sender, of: run, number };
        let request_id = self.client_log.record(request.clone(), process);
        self.note(format!("request {request_id} by process {process} itself: {request:?}"));
        let start = Box::new(self.start_request(process, sender, &found, None, body));
        self.deliver(process, Command::Start { start, reply_to: request_id, ended: None });
        Ok(())
    }

    fn record_notification_error(&mut self, run: RunId, number: u64, error: String) {
        if !self.is_store_down() {
            let row = NotificationRow { org: OrgId::DEFAULT, run, number, error };
            ready(self.store.record_notification_error(&row)).expect("the memory store answers");
        }
    }
}
