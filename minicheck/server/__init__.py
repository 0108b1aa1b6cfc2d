"""Graders of lesson 06: parameters on servers, synchronous, asynchronous, and with bounded staleness.

`work` holds the gradients, which take time on the clock of a World, and `replay` what may follow from what.
"""
