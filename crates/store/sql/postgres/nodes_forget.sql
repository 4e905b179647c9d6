-- Keeps the row with the largest epoch, from which the next epoch is computed.
DELETE FROM nodes
WHERE barred AND until < clock_timestamp() - interval '7 days' AND epoch < (SELECT max(epoch) FROM nodes)
