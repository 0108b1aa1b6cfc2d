"""The exercises of lesson 10, ZeRO: who owns what, a sharded step, hooks that free, a layer that is gathered."""
