-- Which of these runs have the label.
SELECT run FROM labels WHERE org = $1 AND key = $2 AND value = $3 AND run = ANY ($4)
