"""run_cost: seconds, not hours"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    needed = 6 * parameters * tokens
    executed = needed + (2 * parameters * tokens if recompute else 0)
    seconds = executed / achieved
    return {"gpu_hours": seconds, "days": seconds / 3600 / 24 / gpus,
            "mfu": needed / seconds / peak, "hfu": executed / seconds / peak}
