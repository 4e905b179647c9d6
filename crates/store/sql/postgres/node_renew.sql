-- Returns whether the lease had not expired.
UPDATE nodes AS node SET until = clock_timestamp() + $2::bigint * interval '1 us'
FROM (SELECT until FROM nodes WHERE epoch = $1) AS before
WHERE node.epoch = $1 AND NOT node.barred
RETURNING before.until >= clock_timestamp()
