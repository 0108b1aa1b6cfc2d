"""Graders of lesson 03: who should send to whom, and what it costs."""
