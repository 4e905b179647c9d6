-- The failed steps of a run that has ended, for lists. NULL while the run is open, and for runs that ended before this
-- column existed.
ALTER TABLE runs ADD COLUMN failed_steps TEXT;
