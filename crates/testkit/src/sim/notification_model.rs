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
    owed: BTreeMap<NotificationId, Option<RunId>>,
    /// What runs are to tell, should they come to exist.
    tellers: BTreeMap<RunId, NotificationId>,
}

impl NotificationModel {
    /// Somebody is about to ask for a run that tells this.
    pub fn expect(&mut self, teller: RunId, notice: NotificationId) {
        self.tellers.insert(teller, notice);
    }

    pub fn of(&self, teller: RunId) -> Option<NotificationId> {
        self.tellers.get(&teller).copied()
    }

    pub fn is_told(&self) -> bool {
        self.owed.values().all(Option::is_some)
    }

    /// A run has ended, and this many are to be told.
    pub fn ended(&mut self, run: RunId, count: u32, store: &MemoryStore) -> CheckResult {
        for number in 0..count {
            self.owed.entry((run, number)).or_default();
        }
        let rows = rows(store, run);
        let is_written = rows.iter().copied().eq(0..count);
        ViolationKind::Lost
            .unless(is_written, || format!("{run} has ended: {count} are to be told, the rows are {rows:?}"))
    }

    /// A run exists; perhaps it tells something.
    pub fn began(&mut self, teller: RunId, store: &MemoryStore) -> CheckResult {
        let Some(notice) = self.of(teller) else { return Ok(()) };
        let Some(told) = self.owed.get_mut(&notice) else {
            return Err(Violation {
                kind: ViolationKind::Early,
                message: format!("{teller} tells of {notice:?}, which is not so"),
            });
        };
        let other = told.replace(teller);
        ViolationKind::Duplicated
            .unless(other.is_none(), || format!("{notice:?} is told by {teller} and by {other:?}"))?;
        let is_left = rows(store, notice.0).contains(&notice.1);
        require(!is_left, || format!("{notice:?} is told by {teller}, and its row is still there"))
    }

    /// Nothing that has not been told is forgotten.
    pub fn check(&self, store: &MemoryStore) -> CheckResult {
        for ((run, number), _) in self.owed.iter().filter(|(_, told)| told.is_none()) {
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
    pub fn look(&mut self, process: usize) {
        if !self.is_store_down() {
            for NoticeRow { run, number, .. } in ready(self.store.notices(None, PAGE)).unwrap_or_default() {
                self.push_process(process, ProcessEvent::Notify { run, number });
            }
        }
        self.push(AGAIN, SimEvent::Process(process, ProcessEvent::ScanOutbox));
    }

    /// Tries once; what could not be told is a row and keeps.
    pub fn tell(&mut self, process: usize, run: RunId, number: u32) -> CheckResult {
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
        let is_called = |name: &str| self.definitions.iter().position(|d| d.version.name == name);
        let name = if notify.url.is_empty() { &notify.workflow } else { super::world::TELLER };
        let definition = is_called(name).ok_or_else(|| format!("nothing is called {name}"))?;
        let lane = self.around.below(2);
        let trigger = Trigger::draw(&mut self.around, lane);
        let teller = RunId::new(self.now, self.around.bytes());
        let body = self.conceive(teller, trigger, definition, false);
        self.checker.news.expect(teller, (run, number));
        let request = Request::Notify { run: teller, of: run, number };
        let ticket = self.ledger.ask(request.clone(), process);
        self.note(format!("request {ticket} of process {process} itself: {request:?}"));
        let start = Box::new(self.start(process, teller, None, body));
        self.deliver(process, Command::Start { start, ticket, ended: None });
        Ok(())
    }
}
