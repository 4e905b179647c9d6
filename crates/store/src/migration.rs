//! Which migrations a database still needs, and which databases a release must refuse: the same rule for SQLite and
//! Postgres.

use crate::{Error, Result};
use sha2::{Digest, Sha256};

/// One change of the schema: an immutable file.
pub(crate) struct Migration {
    pub version: i32,
    pub name: &'static str,
    pub sql: &'static str,
}

impl Migration {
    pub fn sha256(&self) -> String {
        Sha256::digest(self.sql).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The migrations of `all` that are still to be applied to a database with these `applied` ones (version, name and
/// hash, in order), or why this release must not touch the database.
pub(crate) fn pending<'a>(all: &'a [Migration], applied: &[(i32, String, String)]) -> Result<&'a [Migration]> {
    for (index, (version, name, sha256)) in applied.iter().enumerate() {
        match all.get(index) {
            _ if *version as usize > all.len() => {
                let newest = all.len();
                return Err(Error::Refused(format!(
                    "the database has schema {version} (`{name}`), this release knows up to {newest}; \
                     use the release that wrote it, or a later one"
                )));
            }
            Some(known) if known.version == *version && known.sha256() == *sha256 => {}
            Some(known) if known.version == *version => {
                return Err(Error::Refused(format!(
                    "migration {version} (`{name}`) was applied in another form than this release has; \
                     the database belongs to a different build"
                )));
            }
            _ => return Err(Error::Corrupt("the list of applied migrations has gaps".into())),
        }
    }
    Ok(&all[applied.len()..])
}
