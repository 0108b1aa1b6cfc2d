"""The right answers that a grader computes itself, where a submission must not reach them."""
