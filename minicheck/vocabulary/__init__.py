"""Graders of lesson 12: a vocabulary that is split over ranks.

`oracle` computes on one rank what the answers compute on several, and what mistakes would give.
"""
