"""run_cost: a fraction of all GPUs' peak in one GPU's time"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    needed = 6 * parameters * tokens
    executed = needed + (2 * parameters * tokens if recompute else 0)
    seconds = executed / achieved
    return {"gpu_hours": seconds / 3600, "days": seconds / 3600 / 24 / gpus,
            "mfu": needed / seconds / (peak * gpus), "hfu": executed / seconds / peak}
