-- From the one that has the position on.
SELECT first, records FROM positions
WHERE first >= COALESCE((SELECT max(first) FROM positions WHERE first <= $1), 0)
ORDER BY first LIMIT $2
