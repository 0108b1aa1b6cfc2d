"""Graders of lesson 09: operators and graphs.

`oracle` has the right numbers, and those of mistakes; `seen` counts what an answer makes, keeps and multiplies.
"""
