SELECT first + length(records) / 24 - 1 FROM positions ORDER BY first DESC LIMIT 1
