SELECT org, hash, source, plan FROM definitions ORDER BY org, hash
