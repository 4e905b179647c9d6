-- The place stays, so that positions and every other run's chain are what they were.
UPDATE journal SET body = x'' WHERE pos = $1
