-- Without a place in the journal, which is elsewhere here.
SELECT org, run, seq, body FROM snapshots ORDER BY org, run
