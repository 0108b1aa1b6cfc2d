"""run_cost: nothing is returned"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    needed = 6 * parameters * tokens
    executed = needed + (2 * parameters * tokens if recompute else 0)
    seconds = executed / achieved
    result = seconds
