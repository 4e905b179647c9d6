//! Workflows, versions and definitions, in memory.

use super::Contents;
use crate::rows::*;
use crate::write_validation::slugs;
use crate::{Error, Result};
use kernel::{OrgId, Timestamp, WorkflowId};

impl Contents {
    pub(super) fn create_workflow(&mut self, new: &NewWorkflow) -> Result<std::result::Result<(), NameTaken>> {
        let NewWorkflow { row, definition, slug_is_given, idempotency, trigger } = new;
        let key = idempotency.as_ref().map(|k| ((row.org, k.scope.clone(), k.key.clone()), k.fingerprint));
        if let Some((made, fingerprint)) = key.as_ref().and_then(|(key, _)| self.idempotency.get(key)).copied() {
            return Ok(Err(NameTaken::Key { workflow: WorkflowId(made), fingerprint }));
        }
        if self.workflows.contains_key(&(row.org, row.id)) {
            return Err(Error::Refused(format!("the workflow {} exists already", row.id)));
        }
        if self.live_workflows(row.org).any(|w| w.name == row.name) {
            return Ok(Err(NameTaken::Name));
        }
        if self.live_workflows(row.org).any(|w| w.slug == row.name) {
            return Ok(Err(NameTaken::NameIsSlug));
        }
        let is_slug = |slug: &String| self.live_workflows(row.org).any(|w| w.slug == *slug);
        let is_name = |slug: &String| self.live_workflows(row.org).any(|w| w.name == *slug);
        let slug = match slug_is_given {
            true if is_slug(&row.slug) => return Ok(Err(NameTaken::Slug)),
            true if is_name(&row.slug) => return Ok(Err(NameTaken::SlugIsName)),
            true => Some(row.slug.clone()),
            false => slugs(&row.slug).find(|slug| !is_slug(slug) && !is_name(slug)),
        };
        let Some(slug) = slug else { return Ok(Err(NameTaken::Slug)) };
        if !self.put_owned(row.org, row.id, trigger.as_ref()) {
            return Ok(Err(NameTaken::Path));
        }
        if let Some((key, fingerprint)) = key {
            self.idempotency.insert(key, (row.id.0, fingerprint));
        }
        self.workflows.insert((row.org, row.id), WorkflowRow { slug, ..row.clone() });
        self.put_version(row, "create", row.created_at);
        self.version_sources.insert((row.org, row.id, row.version), definition.source.clone());
        self.put_definition(row.org, definition);
        Ok(Ok(()))
    }

    pub(super) fn edit_workflow(&mut self, edit: &WorkflowEdit) -> Edited {
        let WorkflowEdit { seen, row, definition, version_from, source, trigger } = edit;
        let key = (seen.org, seen.id);
        if self.workflows.get(&key).filter(|now| now.deleted_at.is_none()) != Some(seen) {
            return Edited::Changed;
        }
        let has_other = |is_same: fn(&WorkflowRow, &WorkflowRow) -> bool| {
            row.deleted_at.is_none() && self.live_workflows(seen.org).any(|w| w.id != seen.id && is_same(w, row))
        };
        if has_other(|one, other| one.name == other.name) {
            return Edited::Taken(NameTaken::Name);
        }
        if has_other(|one, other| one.slug == other.slug) {
            return Edited::Taken(NameTaken::Slug);
        }
        if row.name != seen.name && has_other(|one, other| one.slug == other.name) {
            return Edited::Taken(NameTaken::NameIsSlug);
        }
        if row.slug != seen.slug && has_other(|one, other| one.name == other.slug) {
            return Edited::Taken(NameTaken::SlugIsName);
        }
        let wanted = match trigger {
            OwnTrigger::Put(wanted) => Some(&**wanted),
            OwnTrigger::Keep | OwnTrigger::Remove => None,
        };
        if row.deleted_at.is_some() {
            self.delete_triggers_of(seen.org, seen.id);
            self.pauses.remove(&key);
        } else if !matches!(trigger, OwnTrigger::Keep) && !self.put_owned(seen.org, seen.id, wanted) {
            return Edited::Taken(NameTaken::Path);
        }
        let row = WorkflowRow { org: seen.org, id: seen.id, created_at: seen.created_at, ..row.clone() };
        if let Some(from) = version_from {
            self.put_version(&row, from, row.updated_at);
        }
        if let Some(source) = source {
            self.version_sources.insert((row.org, row.id, row.version), source.clone());
        }
        if let Some(definition) = definition {
            self.put_definition(row.org, definition);
        }
        self.workflows.insert(key, row);
        Edited::Done
    }

    fn put_version(&mut self, row: &WorkflowRow, source: &str, at: Timestamp) {
        let version = VersionRow { number: row.version, hash: row.hash, source: source.to_owned(), at };
        self.versions.insert((row.org, row.id, row.version), version);
    }

    pub(super) fn put_definition(&mut self, org: OrgId, definition: &StoredDefinition) {
        let key = (org, definition.hash, definition.lowering);
        self.definitions.entry(key).or_insert_with(|| definition.clone());
    }
}
