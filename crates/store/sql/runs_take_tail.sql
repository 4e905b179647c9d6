-- Runs that were taken up after the recovery position. Of one that is parked the row has the last record, so one with a later
-- record is not.
UPDATE runs SET parked = 0, waiting = 0
FROM (SELECT org, run, max(pos) AS last FROM journal WHERE pos > $1 AND length(body) > 0 GROUP BY org, run) AS tail
WHERE runs.org = tail.org AND runs.id = tail.run
  AND runs.parked = 1 AND runs.status = 'running' AND runs.head < tail.last
