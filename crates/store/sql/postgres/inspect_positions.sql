-- The order of the journal as it has been made, and then what has arrived since.
SELECT first, records FROM (
    SELECT first, 0 AS id, records FROM positions
    UNION ALL
    SELECT NULL, id, records FROM arrivals
) AS named ORDER BY first NULLS LAST, id
