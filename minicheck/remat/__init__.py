"""Graders of lesson 08: accumulation by tokens, a checkpoint, its random numbers, segments, plans, reversible blocks.

What is kept is counted by the memory of tensors, whoever holds them; what runs again, by calls.
"""
