-- The first lease is 10 seconds, in which the node must renew it. The new epoch is also larger than every epoch this
-- process had, in case the server lost its row.
INSERT INTO nodes (epoch, name, barred, until)
SELECT GREATEST(COALESCE(max(epoch), 0), $2) + 1, $1, false, clock_timestamp() + interval '10 s' FROM nodes
RETURNING epoch
