SELECT first, records FROM positions WHERE first < $1 ORDER BY first DESC LIMIT $2
