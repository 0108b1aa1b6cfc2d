"""run_cost: recomputation is always counted"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    needed = 6 * parameters * tokens
    executed = needed + 2 * parameters * tokens
    seconds = executed / achieved
    return {"gpu_hours": seconds / 3600, "days": seconds / 3600 / 24 / gpus,
            "mfu": needed / seconds / peak, "hfu": executed / seconds / peak}
