"""best_plan: a repeated layer needs no bytes"""

def best_plan(costs, memories, budget):
    best = {0: (0, [])}
    for cost, nbytes in zip(costs, memories):
        found = {}
        for held, (paid, kept) in best.items():
            for after, entry in ((held + nbytes, (paid, [*kept, True])), (held, (paid + cost, [*kept, False]))):
                if after <= budget and (after not in found or entry[0] < found[after][0]):
                    found[after] = entry
        best = found
    if not best:
        raise ValueError("too little")
    return min(best.values(), key=lambda entry: entry[0])[1]
