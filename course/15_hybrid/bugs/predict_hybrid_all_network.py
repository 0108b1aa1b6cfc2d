"""predict_hybrid: everything over the network"""

N = 4096 * 8192 * 2
replica = 2 * 8
tp_bytes = 12 * (32 / 2) * 4 * (2 * 7 / 8) * N
dp_bytes = 2 * 3 / 4 * (12 * 8192**2 * 32 / replica) * 2
pp_bytes = 12 * N
good = tp_bytes / 400e9 + (dp_bytes + pp_bytes) / 50e9
bad = (tp_bytes + dp_bytes + pp_bytes) / 50e9
ratio = bad / good
