-- The run goes on with another version of its workflow.
UPDATE runs SET version = $1, hash = $2, lowering = $3 WHERE org = $4 AND id = $5
