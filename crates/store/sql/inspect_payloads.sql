SELECT org, run, number, length(body) FROM payloads ORDER BY org, run, number
