INSERT INTO arrivals (epoch, records)
SELECT CASE WHEN NOT EXISTS (SELECT FROM nodes WHERE epoch = $1 AND barred) THEN $1 END, $2
