"""The exercises of lesson 19, Capstone: a ring, a future, flat shards and a hook, under PyTorch's own DDP and FSDP2."""
