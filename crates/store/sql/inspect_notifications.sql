SELECT org, run, number FROM notices ORDER BY org, run, number
