-- A delivery can give a signal to runs that are open (`signalled`).
ALTER TABLE deliveries DROP CONSTRAINT deliveries_outcome_check;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_outcome_check
    CHECK (outcome IN ('started', 'queued', 'skipped', 'rejected', 'signalled'));
