"""predict_server: the grader is asked"""

from minidist.check.server.numbers import server_slips

values, _ = server_slips(32, 1e9, 40e-3, 10e-6, 1 / 50e9, 100e-3, 3, 2, 4.0)
one, ring, servers, into, gradients, stalest, rate = (f"{x}" for x in values.values())
