DELETE FROM arrivals WHERE id IN (SELECT id FROM arrivals WHERE id > $1 ORDER BY id LIMIT $2) RETURNING id, records
