"""Graders of lesson 02: from one message to a ring all-reduce."""
