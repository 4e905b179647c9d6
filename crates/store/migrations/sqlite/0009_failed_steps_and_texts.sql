-- The failed steps of a run that has ended, for lists. NULL while the run is open, and for runs that ended before this
-- column existed.
ALTER TABLE runs ADD COLUMN failed_steps TEXT;

-- The definition as the author of this version wrote it. Definitions with the same hash are stored once, but the order of
-- steps and the author's own `version` may differ. NULL for versions stored before this column existed.
ALTER TABLE versions ADD COLUMN definition BLOB;
