"""The exercises of lesson 17, Large batches: a schedule, LARS, LAMB over shards, the noise scale, clipping."""
