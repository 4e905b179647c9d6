-- It has a moment to say that it is there.
INSERT INTO nodes (epoch, name, barred, until)
SELECT COALESCE(max(epoch), 0) + 1, $1, false, clock_timestamp() + interval '10 s' FROM nodes
RETURNING epoch
