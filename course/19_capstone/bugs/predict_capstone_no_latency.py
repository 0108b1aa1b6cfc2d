"""predict_capstone: the messages cost no latency"""

n, N = 8, 4 * 24e6
ddp_messages = 5 * 2 * (n - 1)
ddp_bytes = 2 * (n - 1) / n * N
gathers = 2 * 4
fsdp_messages = (gathers + 4) * (n - 1)
fsdp_bytes = 3 * (n - 1) / n * N
seconds = ddp_bytes / 10e9
micro_bytes = 3 * ddp_bytes
