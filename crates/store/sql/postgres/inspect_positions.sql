-- The records that have positions, then those that have none yet.
SELECT first, records FROM (
    SELECT first, 0 AS id, records FROM positions
    UNION ALL
    SELECT NULL, id, records FROM arrivals
) AS named ORDER BY first NULLS LAST, id
