SELECT org, made, scope, key FROM idempotency WHERE scope <> 'workflows' ORDER BY org, made
