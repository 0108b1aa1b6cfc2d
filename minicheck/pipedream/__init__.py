"""Graders of lesson 14: lists without a flush, versions of the weights, a stage that keeps them, and two versions.

`words` of lesson 13 reads lists; the oracle of late gradients knows neither lists nor stages.
"""
