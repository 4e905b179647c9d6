SELECT org, name, count(*) FROM ready GROUP BY org, name ORDER BY org, name
