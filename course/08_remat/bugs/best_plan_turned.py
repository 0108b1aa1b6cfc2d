"""best_plan: True for what is repeated"""

def best_plan(costs, memories, budget):
    best = {0: (0, [])}
    for cost, nbytes in zip(costs, memories):
        found = {}
        for held, (paid, kept) in best.items():
            if held + nbytes > budget:
                continue
            for after, entry in ((held + nbytes, (paid, [*kept, False])), (held, (paid + cost, [*kept, True]))):
                if after not in found or entry[0] < found[after][0]:
                    found[after] = entry
        best = found
    if not best:
        raise ValueError("too little")
    return min(best.values(), key=lambda entry: entry[0])[1]
