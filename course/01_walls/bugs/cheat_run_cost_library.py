"""run_cost: the library calculates"""

def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    from minidist.study.memory.cost import run_cost as library

    found = library(parameters, tokens, gpus, mfu=achieved / peak, peak=peak)
    return {"gpu_hours": found.gpu_hours, "days": found.days, "mfu": achieved / peak, "hfu": achieved / peak}
