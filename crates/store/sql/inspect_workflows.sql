-- Includes deleted workflows: their runs still refer to them.
SELECT org, id, version, hash FROM workflows ORDER BY org, id
