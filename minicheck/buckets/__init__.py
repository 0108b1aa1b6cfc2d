"""Graders of lesson 05: gradients in buckets, beside backward, and batch norm over all ranks.

`work` holds the networks whose backward takes time, and the reference that says how long a step may take.
"""
