SELECT org, run, step, attempt, fence FROM grants ORDER BY org, run, step
