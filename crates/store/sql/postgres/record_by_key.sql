-- Was this record among the newest ever written, whether or not it still exists?
SELECT EXISTS (SELECT FROM arrivals WHERE position($1::bytea IN records) > 0)
    OR EXISTS (SELECT FROM (SELECT records FROM positions ORDER BY first DESC LIMIT $2) AS newest
               WHERE position($1::bytea IN records) > 0)
