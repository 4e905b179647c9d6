-- Without a position in the journal, which snapshots do not have on Postgres.
SELECT org, run, seq, body FROM snapshots ORDER BY org, run
