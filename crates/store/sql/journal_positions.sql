-- Reads the records of all organisations, so that one page reads a bounded number of rows. The caller skips deleted
-- and hidden runs.
SELECT pos, org, run, body,
       EXISTS (SELECT 1 FROM runs WHERE runs.org = journal.org AND runs.id = journal.run AND deleted_at IS NOT NULL)
FROM journal WHERE pos > $1 ORDER BY pos LIMIT $2
