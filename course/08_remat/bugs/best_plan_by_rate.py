"""best_plan: the dearest for a byte first"""

def best_plan(costs, memories, budget):
    if max(memories) > budget:
        raise ValueError("too little")
    kept = [False] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i] / memories[i]):
        kept[i] = True
        held = [sum(m for m, k in zip(memories[:l], kept) if k) + memories[l] for l in range(len(costs))]
        kept[i] = max(held) <= budget
    return kept
