-- By run: the journal table itself has no order of all records.
SELECT org, run, seq, body FROM journal ORDER BY org, run, seq
