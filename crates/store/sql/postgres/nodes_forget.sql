-- The largest epoch is what the next one follows.
DELETE FROM nodes
WHERE barred AND until < clock_timestamp() - interval '7 days' AND epoch < (SELECT max(epoch) FROM nodes)
