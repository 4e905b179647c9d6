-- Whatever the organisation, so that a stretch is a bounded look; what was erased or is hidden is passed over.
SELECT pos, org, run, body,
       EXISTS (SELECT 1 FROM runs WHERE runs.org = journal.org AND runs.id = journal.run AND deleted_at IS NOT NULL)
FROM journal WHERE pos > $1 ORDER BY pos LIMIT $2
