-- It has a moment to say that it is there. An epoch of a history that was lost is not given again.
INSERT INTO nodes (epoch, name, barred, until)
SELECT GREATEST(COALESCE(max(epoch), 0), $2) + 1, $1, false, clock_timestamp() + interval '10 s' FROM nodes
RETURNING epoch
