-- Starts with the row that contains the position.
SELECT first, records FROM positions
WHERE first >= COALESCE((SELECT max(first) FROM positions WHERE first <= $1), 0)
ORDER BY first LIMIT $2
