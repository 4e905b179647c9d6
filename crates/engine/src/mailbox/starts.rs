//! New runs: into memory, and past their concurrency group.

use super::*;

impl<T> Mailbox<T> {
    pub(super) fn start(&mut self, start: StartRun, reply_to: T, atomic_group: Option<AtomicGroup>) {
        let StartRun { org, run, version, origin, copied, concurrency_group, run_insert, source } = start;
        if self.runs.get(&run).is_some_and(|entry| entry.live.is_some()) {
            // A child was started already: its id is always the same.
            let input = Input::Start { origin: Box::new(origin), admission: Admission::Open, copied };
            let item = QueuedInput { reply_to: Some(reply_to), source, ..QueuedInput::internal(input) };
            return self.push(org, run, item);
        }
        // Only the node that owns a concurrency group admits its runs. It will find this run in the queue.
        let is_kept_elsewhere =
            concurrency_group.as_ref().is_some_and(|concurrency_group| !self.nodes.keeps(&concurrency_group.id));
        if let Some(said) = concurrency_group.as_ref().filter(|_| !is_kept_elsewhere) {
            let admitted = self.concurrency_groups.raise_limit(origin.workflow, said);
            self.admit(admitted);
        }
        let admission = match is_kept_elsewhere {
            true => Admission::Queue(Queue::Limit),
            false => self.concurrency_groups.enter(org, run, origin.workflow, concurrency_group.as_ref()),
        };
        if planted_bugs::is(Bug::SupersedeBeforeCommit) {
            self.supersede(self.concurrency_groups.supersedes(run));
        }
        let row = RunRow {
            org,
            id: run,
            workflow: origin.workflow,
            workflow_name: origin.workflow_name.clone(),
            version: origin.version,
            hash: version.hash,
            lowering: version.lowering,
            form: version.plan.layout().form,
            status: RunStatus::Running,
            waiting: 0,
            wake_at: None,
            created_at: Timestamp::default(),
            expires_at: origin.expires_at,
            finished_at: None,
            error_code: None,
            failed_steps: None,
            concurrency_group,
            evicted: false,
            deleted_at: None,
        };
        let live = LiveRun {
            version,
            run: Run::default(),
            seq: 0,
            created: Some(Box::new(run_insert)),
            open_waits: BTreeMap::new(),
            atomic_group,
            row,
            stored_bytes: StoredBytes::default(),
            armed: None,
            payloads: Payloads::new(),
            fetching: Vec::new(),
            stored: BTreeSet::new(),
            limit_slots: BTreeSet::new(),
            updated_at: self.now,
            is_shared_copy: false,
            is_moving: false,
        };
        let input = Input::Start { origin: Box::new(origin), admission, copied };
        let item = QueuedInput { reply_to: Some(reply_to), source, is_checked: true, ..QueuedInput::internal(input) };
        // What arrived before the run existed, and was to be read from the store.
        let early = self.runs.remove(&run).map(|entry| entry.inbox).unwrap_or_default();
        let entry = RunEntry {
            org,
            phase: Phase::Resident,
            inbox: std::iter::once(item).chain(early).collect(),
            is_queued: true,
            is_due: false,
            live: Some(Box::new(live)),
        };
        self.runs.insert(run, entry);
        self.queue.push_back(run);
    }
}
