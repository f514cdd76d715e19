"""The policy guide: tasks that are no data set of unstale, the evidence of its runs, and the advice drawn from it."""
