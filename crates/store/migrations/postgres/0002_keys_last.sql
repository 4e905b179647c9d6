-- On a table the server has not looked at yet, every index that begins with the organisation seems to find one row as
-- quickly as the primary key does, and the server takes the one that was made last. So a run was looked for among all
-- runs of its organisation until the server counted them. The primary key has to be the last one made.
ALTER TABLE runs DROP CONSTRAINT runs_pkey, ADD CONSTRAINT runs_pkey PRIMARY KEY (org, id);
ALTER TABLE triggers DROP CONSTRAINT triggers_pkey, ADD CONSTRAINT triggers_pkey PRIMARY KEY (org, id);
