"""Ours beside PyTorch's own, in one run: `make bench`, or `python -m benchmarks.NAME`."""
