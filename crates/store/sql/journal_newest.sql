-- Of an erased run there is only the place left.
SELECT body FROM journal WHERE length(body) > 0 ORDER BY pos DESC LIMIT 1
