//! The store, failing on purpose: away for a while, silent about a commit, unable to read.
//!
//! Faults are whole calls: a batch lands or does not, as a transaction does. After every write what is
//! stored is examined, whatever the writer was told.

use super::Judgement;
use super::check::fold;
use super::world::{World, ready};
use bytes::Bytes;
use engine::mailbox::{Resumed, Trouble};
use kernel::{OrgId, RunId};
use store::{Batch, Error, Result, Store, Verdict};

impl World {
    /// Nothing can be read or written.
    pub fn is_store_down(&self) -> bool {
        !self.is_calm && self.now < self.store_down_until
    }

    pub fn write(&mut self, batch: &Batch) -> Result<Vec<Verdict>> {
        let is_down = self.is_store_down();
        self.trace.mark("a commit was refused", is_down);
        if is_down {
            return Err(Error::Unavailable("away".into()));
        }
        let is_unknown = !self.is_calm && self.chance.chance(self.faults.unknown);
        let lands = !is_unknown || self.chance.coin();
        let result = if lands { ready(self.store.commit(batch)) } else { Ok(Vec::new()) };
        let has_conflict = matches!(&result, Ok(verdicts) if verdicts.contains(&Verdict::Conflict));
        self.trace.mark("a commit met a conflict", has_conflict);
        self.trace.mark("a commit landed and nobody learned", is_unknown && lands);
        self.trace.mark("a commit did not land and nobody learned", is_unknown && !lands);
        if is_unknown { Err(Error::Unknown(format!("no answer, landed: {lands}"))) } else { result }
    }

    /// Holds every run of a batch against the invariants.
    pub fn examine(&mut self, batch: &Batch) -> Judgement {
        for run in batch.runs.iter().map(|write| write.run) {
            let Some(stored) = self.store.stored_run(OrgId::DEFAULT, run) else { continue };
            self.checker.committed(&stored, batch.epoch).map_err(|what| format!("{run}: {what}"))?;
            let seq = self.checker.stored(run).map_or(0, |run| run.state.seq);
            self.note(format!("  {run} is {} at event {seq}", stored.row.status));
        }
        Ok(())
    }

    pub fn load(&mut self, run: RunId) -> std::result::Result<Option<Resumed>, Trouble> {
        self.may_read()?;
        let loaded = ready(self.store.load(OrgId::DEFAULT, run)).map_err(unreadable)?;
        let Some(loaded) = loaded else { return Ok(None) };
        self.trace.mark("a snapshot was read", loaded.snapshot.is_some());
        let definition = &self.definitions[self.pinned[&run]];
        let snapshot = loaded.snapshot.as_ref().map(|(_, bytes)| bytes);
        let folded = fold(definition, snapshot, &loaded.records).map_err(Trouble::Damaged)?;
        let (version, records) = (definition.version.clone(), loaded.records.len() as u32);
        Ok(Some(Resumed { version, run: folded, seq: loaded.seq, row: loaded.row, records }))
    }

    pub fn fetch(&mut self, run: RunId, numbers: &[u32]) -> std::result::Result<Vec<(u32, Bytes)>, Trouble> {
        self.may_read()?;
        self.trace.mark("a payload was fetched", true);
        ready(self.store.payloads(OrgId::DEFAULT, run, numbers)).map_err(unreadable)
    }

    fn may_read(&mut self) -> std::result::Result<(), Trouble> {
        let fails = self.is_store_down() || !self.is_calm && self.chance.chance(self.faults.read_failure);
        self.trace.mark("a read failed", fails);
        if fails { Err(Trouble::Store("away".into())) } else { Ok(()) }
    }
}

fn unreadable(error: Error) -> Trouble {
    Trouble::Store(error.to_string())
}
