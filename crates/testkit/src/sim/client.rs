//! Clients: they start runs, call back too early, too late, twice and with other bytes, cancel at any
//! time, watch, and try again with the same key when they did not hear.

use super::ledger::{Ask, Ledger};
use super::random::Random;
use super::trigger::Trigger;
use super::world::{Event, World};
use bytes::Bytes;
use engine::mailbox::{Command, Start};
use kernel::event::Origin;
use kernel::payload::INLINE_MAX;
use kernel::run::Phase;
use kernel::{Input, OrgId, Payload, RunId, Span, Timestamp};
use store::{Birth, IdempotencyKey, Wait};

/// The callback whose body does not fit into a record.
const LARGE: u64 = 2;

/// Moments further off than this are not aimed at.
const AIM_MAX: Span = Span::from_secs(600);

/// One request to come.
pub struct Errand {
    ask: Ask,
    /// What it carries: the trigger's body, or the callback's.
    body: Bytes,
}

/// Everything clients are going to do before `until`.
pub fn draw(world: &mut World, runs_max: u64, until: Timestamp) -> Vec<(Timestamp, Errand)> {
    let mut random = world.workload.clone();
    let mut errands = Vec::new();
    let length = until.since(world.now).0;
    for n in 0..random.between(1, runs_max) {
        let at = world.now.after(Span(random.below(length * 2 / 3)));
        let definition = random.below(world.definitions.len() as u64) as usize;
        let key = random.chance(300).then_some(n as u32);
        let (run, body) = world.conceive(&mut random, at, definition);
        errands.push((at, Errand { ask: Ask::Start { run, key }, body }));
        let later = |random: &mut Random| at.after(random.log_millis(1, 120_000));
        for step in world.definitions[definition].shape.waits() {
            for _ in 0..random.below(4) {
                errands.push((later(&mut random), callback(run, step, random.below(3))));
            }
        }
        for _ in 0..random.below(4).saturating_sub(1) {
            let ask = if random.chance(300) { Ask::Cancel { run } } else { Ask::Watch { run } };
            errands.push((later(&mut random), Errand { ask, body: Bytes::new() }));
        }
        if random.chance(250) {
            let ask = Ask::Cancel { run };
            errands.push((until.after(random.millis(0, 600_000)), Errand { ask, body: Bytes::new() }));
        }
    }
    world.workload = random;
    errands
}

/// Equal numbers, equal bytes.
fn callback(run: RunId, step: u32, number: u64) -> Errand {
    let digest = Bytes::from(format!("{run} s{step} number {number}"));
    let body = [&digest[..], &vec![b'x'; if number == LARGE { INLINE_MAX } else { 0 }]].concat().into();
    Errand { ask: Ask::Callback { run, step, digest }, body }
}

impl World {
    /// A run that may come to exist, and what it is given.
    fn conceive(&mut self, random: &mut Random, at: Timestamp, definition: usize) -> (RunId, Bytes) {
        let run = RunId::new(at, random.bytes());
        let trigger = Trigger::draw(random);
        let body = trigger.body();
        self.pinned.insert(run, definition);
        self.checker.expect(run, self.definitions[definition].clone(), trigger);
        (run, body)
    }

    /// Aims a callback, a cancel or both at the moment in which `process` will find the run due.
    pub fn aim(&mut self, run: RunId, process: usize) {
        let Some(state) = self.checker.stored(run).filter(|state| !state.is_terminal()) else { return };
        let Some(due) = state.next_due().filter(|due| due.since(self.time(process)) < AIM_MAX) else { return };
        let is_open = |step: &u32| matches!(state.step(*step).phase, Phase::Waiting { .. });
        let door = self.definitions[self.pinned[&run]].shape.waits().find(is_open);
        let at = self.when(process, due);
        let moment = |chance: &mut Random| Timestamp(at.0 + chance.pick(&[-1_000, -1, 0, 0, 1, 1_000])).max(self.now);
        let (calls, cancels) = self.chance.pick(&[(true, false), (true, false), (false, true), (true, true)]);
        let mut errands = Vec::new();
        if let Some(step) = door.filter(|_| calls) {
            errands.push((moment(&mut self.chance), callback(run, step, self.chance.below(3))));
        }
        if cancels {
            errands.push((moment(&mut self.chance), Errand { ask: Ask::Cancel { run }, body: Bytes::new() }));
        }
        self.trace.mark("a callback was aimed at a deadline", calls && door.is_some());
        self.trace.mark("a cancel was aimed at a deadline", cancels);
        for (at, errand) in errands {
            self.push_at(at, Event::Client(errand));
        }
    }

    /// Sends a request to some process; when none listens, nobody hears it.
    pub fn send(&mut self, errand: Errand) {
        let Errand { ask, body } = errand;
        let Some(process) = self.reachable() else { return self.unanswered(ask) };
        let ticket = self.ledger.ask(ask.clone(), process);
        self.note(format!("request {ticket} to process {process}: {ask:?}"));
        let (org, some) = (OrgId::DEFAULT, Some(ticket));
        let command = match ask {
            Ask::Start { run, key } if self.chance.chance(200) => {
                let first = (self.start(run, key, body), ticket);
                Command::StartAll(vec![first, self.twin(run, process)])
            }
            Ask::Start { run, key } => {
                Command::Start { start: Box::new(self.start(run, key, body)), ticket, ended: None }
            }
            Ask::Callback { run, step, digest } => {
                let input = Input::Callback { step, body: Payload::sniff(body), digest };
                Command::Give { org, run, input, ticket: some }
            }
            Ask::Cancel { run } => {
                let input = Input::Cancel { actor: Ledger::actor(ticket), reason: String::new() };
                Command::Give { org, run, input, ticket: some }
            }
            Ask::Watch { run } => Command::Watch { org, run, ticket },
        };
        self.deliver(process, command);
    }

    /// A second run like this one, to be started with it.
    fn twin(&mut self, run: RunId, process: usize) -> (Start, usize) {
        let mut random = self.workload.clone();
        let (twin, body) = self.conceive(&mut random, self.now, self.pinned[&run]);
        self.workload = random;
        self.pairs.push((run, twin));
        self.trace.mark("two runs were started together", true);
        let ticket = self.ledger.ask(Ask::Start { run: twin, key: None }, process);
        (self.start(twin, None, body), ticket)
    }

    /// A client that did not hear whether its run was started asks again, if it has a key to do so.
    pub fn unanswered(&mut self, ask: Ask) {
        let Ask::Start { run, key: Some(key) } = ask else { return };
        let mut random = self.workload.clone();
        let (run, body) = self.conceive(&mut random, self.now, self.pinned[&run]);
        let pause = random.log_millis(10, 5_000);
        self.workload = random;
        self.push(pause, Event::Client(Errand { ask: Ask::Start { run, key: Some(key) }, body }));
    }

    fn start(&mut self, run: RunId, key: Option<u32>, body: Bytes) -> Start {
        let version = self.definitions[self.pinned[&run]].version.clone();
        let door = |step: u32| {
            let mut token_hash = [0; 32];
            token_hash[..16].copy_from_slice(&run.0);
            token_hash[16..20].copy_from_slice(&step.to_be_bytes());
            Wait { org: OrgId::DEFAULT, run, step, token_hash, kind: "webhook".into() }
        };
        let idempotency = key.map(|key| IdempotencyKey {
            scope: version.workflow.to_string(),
            key: key.to_string(),
            fingerprint: [0; 32],
            created_at: self.now,
        });
        let waits = self.definitions[self.pinned[&run]].shape.waits().map(door).collect();
        let origin = Origin {
            workflow: version.workflow,
            workflow_name: version.name.clone(),
            version: version.number,
            hash: Bytes::copy_from_slice(&version.hash),
            body: Payload::json(body),
            expires_at: self.now.after(version.plan.layout().max_duration),
            ..Default::default()
        };
        let birth = Birth { waits, idempotency, ..Default::default() };
        Start { org: OrgId::DEFAULT, run, version, origin, gate: None, birth }
    }

    /// Calls back every wait that is open.
    pub fn help(&mut self) {
        let mut doors = Vec::new();
        for (run, definition, state) in self.checker.open() {
            let is_open = |step: &u32| matches!(state.step(*step).phase, Phase::Waiting { .. });
            doors.extend(definition.shape.waits().filter(is_open).map(|step| (run, step)));
        }
        for (run, step) in doors {
            self.send(callback(run, step, 99));
        }
    }
}
