-- A twin that takes all keys at once: the node polls for every caller that waits.
DELETE FROM inbox
USING unnest($1::integer[], $2::uuid[], $3::uuid[]) AS r (org, run, id)
WHERE inbox.org = r.org AND inbox.run = r.run AND inbox.id = r.id AND inbox.answer IS NOT NULL
RETURNING inbox.org, inbox.run, inbox.id, inbox.answer
