-- The row stays, so that positions and the chains of other runs do not change.
UPDATE journal SET body = x'' WHERE pos = $1
