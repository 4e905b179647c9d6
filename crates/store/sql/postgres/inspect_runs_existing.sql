-- Which of these runs exist.
SELECT r.org, r.id FROM unnest($1::integer[], $2::uuid[]) AS u (org, id) JOIN runs r ON r.org = u.org AND r.id = u.id
