//! Who is told that a run has ended: the engine's outbox, played, and what must hold of it.
//!
//! ```text
//!   Released.notices ──┐
//!                      ├─▶ Tell ──read the run──▶ Start of the run that tells
//!   Look (every 10 s) ─┘
//! ```
//!
//! It does what `engine/src/engine/notices.rs` does. The rule: of each thing to be told there is either a
//! row or exactly one run that tells it, from the commit that ended the run onwards, whatever crashes.

use super::client_log::Request;
use super::process::ProcessEvent;
use super::trigger::Trigger;
use super::violation::{CheckResult, Violation, ViolationKind, require};
use super::world::{SimEvent, World, ready};
use engine::engine::AGAIN;
use engine::mailbox::Command;
use kernel::advance::notices;
use kernel::{OrgId, RunId};
use std::collections::BTreeMap;
use store::{MemoryStore, NoticeRow, Store};

/// Rows looked at together.
const PAGE: usize = 1_000;

/// What is owed to somebody, by the run that ended and a number.
pub type NotificationId = (RunId, u32);

#[derive(Default)]
pub struct NotificationModel {
    /// Everything that was ever owed, and the run that tells it.
    expected: BTreeMap<NotificationId, Option<RunId>>,
    /// What runs are to tell, should they come to exist.
    senders: BTreeMap<RunId, NotificationId>,
}

impl NotificationModel {
    /// Somebody is about to ask for a run that tells this.
    pub fn expect_run(&mut self, sender: RunId, notification: NotificationId) {
        self.senders.insert(sender, notification);
    }

    pub fn sent_by(&self, sender: RunId) -> Option<NotificationId> {
        self.senders.get(&sender).copied()
    }

    pub fn all_sent(&self) -> bool {
        self.expected.values().all(Option::is_some)
    }

    /// A run has ended, and this many are to be told.
    pub fn run_ended(&mut self, run: RunId, count: u32, store: &MemoryStore) -> CheckResult {
        for number in 0..count {
            self.expected.entry((run, number)).or_default();
        }
        let rows = rows(store, run);
        let is_written = rows.iter().copied().eq(0..count);
        ViolationKind::Lost
            .unless(is_written, || format!("{run} has ended: {count} are to be told, the rows are {rows:?}"))
    }

    /// A run exists; perhaps it tells something.
    pub fn run_created(&mut self, sender: RunId, store: &MemoryStore) -> CheckResult {
        let Some(notification) = self.sent_by(sender) else { return Ok(()) };
        let Some(sent_by) = self.expected.get_mut(&notification) else {
            return Err(Violation {
                kind: ViolationKind::Early,
                message: format!("{sender} tells of {notification:?}, which is not so"),
            });
        };
        let other = sent_by.replace(sender);
        ViolationKind::Duplicated
            .unless(other.is_none(), || format!("{notification:?} is told by {sender} and by {other:?}"))?;
        let is_left = rows(store, notification.0).contains(&notification.1);
        require(!is_left, || format!("{notification:?} is told by {sender}, and its row is still there"))
    }

    /// Nothing that has not been told is forgotten.
    pub fn check_none_lost(&self, store: &MemoryStore) -> CheckResult {
        for ((run, number), _) in self.expected.iter().filter(|(_, sent_by)| sent_by.is_none()) {
            let is_kept = rows(store, *run).contains(number);
            ViolationKind::Lost.unless(is_kept, || format!("notice {number} of {run} is forgotten"))?;
        }
        Ok(())
    }
}

fn rows(store: &MemoryStore, run: RunId) -> Vec<u32> {
    let rows = ready(store.notices_of(OrgId::DEFAULT, run)).expect("the memory store answers");
    rows.into_iter().map(|row| row.number).collect()
}

impl World {
    /// Looks at the rows that nobody has dealt with.
    pub fn scan_outbox(&mut self, process: usize) {
        if !self.is_store_down() {
            for NoticeRow { run, number, .. } in ready(self.store.notices(None, PAGE)).unwrap_or_default() {
                self.push_soon(process, ProcessEvent::Notify { run, number });
            }
        }
        self.push(AGAIN, SimEvent::Process(process, ProcessEvent::ScanOutbox));
    }

    /// Tries once; what could not be told is a row and keeps.
    pub fn notify(&mut self, process: usize, run: RunId, number: u32) -> CheckResult {
        if self.processes[process].is_draining {
            return Ok(());
        }
        let resumed = match self.load(run) {
            Ok(resumed) => resumed,
            Err(trouble) => {
                let error = format!("{trouble:?}");
                if !self.is_store_down() {
                    let row = NoticeRow { org: OrgId::DEFAULT, run, number, error };
                    ready(self.store.note_notice(&row)).expect("the memory store answers");
                }
                return Ok(());
            }
        };
        let resumed = resumed.ok_or_else(|| format!("somebody is told of {run}, which does not exist"))?;
        let listed = notices(&resumed.version.plan, &resumed.run);
        let Some(notify) = listed.get(number as usize) else {
            let message = format!("somebody is told of the end of {run}, which is {}", resumed.run.status());
            return Err(Violation { kind: ViolationKind::Early, message });
        };
        let find_by_name = |name: &str| self.definitions.iter().position(|d| d.version.name == name);
        let name = if notify.url.is_empty() { &notify.workflow } else { super::world::NOTIFIER };
        let definition = find_by_name(name).ok_or_else(|| format!("nothing is called {name}"))?;
        let group = self.limits_random.below(2);
        let trigger = Trigger::draw(&mut self.limits_random, group);
        let sender = RunId::new(self.now, self.limits_random.bytes());
        let body = self.expect_run(sender, trigger, definition, false);
        self.checker.notifications.expect_run(sender, (run, number));
        let request = Request::Notify { run: sender, of: run, number };
        let ticket = self.client_log.record(request.clone(), process);
        self.note(format!("request {ticket} of process {process} itself: {request:?}"));
        let start = Box::new(self.start_request(process, sender, None, body));
        self.deliver(process, Command::Start { start, ticket, ended: None });
        Ok(())
    }
}
