-- By run: records have no order of their own here.
SELECT org, run, seq, body FROM journal ORDER BY org, run, seq
