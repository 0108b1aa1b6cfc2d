"""Graders of lesson 01: memory and FLOPs of a training step. `figures` says what a wrong number looks like."""
