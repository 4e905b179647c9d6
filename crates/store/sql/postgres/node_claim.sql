INSERT INTO nodes (epoch, fenced) SELECT COALESCE(max(epoch), 0) + 1, false FROM nodes RETURNING epoch
