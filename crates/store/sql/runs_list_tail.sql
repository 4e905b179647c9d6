-- Runs that were made after the recovery position.
UPDATE runs SET listed = 1
WHERE listed = 0 AND (org, id) IN (SELECT org, run FROM journal WHERE pos > $1 AND seq = 1)
