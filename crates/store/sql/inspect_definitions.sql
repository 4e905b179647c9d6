SELECT org, hash, lowering, source, plan FROM definitions ORDER BY org, hash, lowering
