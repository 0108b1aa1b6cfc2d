"""Ranks inside the notebook: on a virtual clock, over the wires of a modelled cluster.

world: runs them.  clock: who runs next.  posted, channel: what they wait for, in order.  wires, routes: when a
message moves.  meter: what computing costs.  cores, generators: the threads and the random numbers of many ranks.
"""
