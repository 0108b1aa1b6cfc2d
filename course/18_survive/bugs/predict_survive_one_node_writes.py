"""predict_survive: lets one node write all"""

whole_bytes = rank_bytes = save_seconds = mtbf_seconds = every_seconds = bubble = gpu_hours = failures = None
psi, gpus = 20e9, 256
whole_bytes = 14 * psi
rank_bytes = whole_bytes / gpus
save_seconds = whole_bytes / 2e9
mtbf_seconds = 20_000 * 3600 / gpus
every_seconds = sqrt(2 * save_seconds * mtbf_seconds)
bubble = 7 / (32 + 7)
gpu_hours = 6 * psi * 400e9 / (3600 * 989e12 * 0.4)
failures = gpu_hours / 20_000
