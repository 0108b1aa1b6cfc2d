"""Graders of lesson 07: half precision, rounded by hand; masters, scales, lists, and ranks that agree.

`oracle` has the right answers, and what the usual mistakes would give.
"""
