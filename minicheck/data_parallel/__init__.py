"""Graders of lesson 04: n copies that train like one.

`replicas` holds the models on which it goes wrong, `averages` what a wrong gradient looks like.
"""
