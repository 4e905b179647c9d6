-- Whatever the organisation, so that a stretch is a bounded look; what was erased is passed over.
SELECT pos, org, run, body FROM journal WHERE pos > $1 ORDER BY pos LIMIT $2
