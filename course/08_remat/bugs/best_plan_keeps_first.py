"""best_plan: the first layers are kept, as long as they fit"""

def best_plan(costs, memories, budget):
    if max(memories) > budget:
        raise ValueError("too little")
    kept, held = [], 0
    for i, nbytes in enumerate(memories):
        fits = held + nbytes + max([0, *memories[i + 1 :]]) <= budget
        kept.append(fits)
        held += nbytes * fits
    return kept
