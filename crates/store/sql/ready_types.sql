SELECT DISTINCT org, name FROM ready ORDER BY org, name
