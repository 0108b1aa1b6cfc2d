"""best_plan: the lists of the caller are used up"""

def best_plan(costs, memories, budget):
    best = {0: (0, [])}
    while costs:
        cost, nbytes, found = costs.pop(0), memories.pop(0), {}
        for held, (paid, kept) in best.items():
            if held + nbytes <= budget:
                for after, entry in ((held + nbytes, (paid, [*kept, True])), (held, (paid + cost, [*kept, False]))):
                    if after not in found or entry[0] < found[after][0]:
                        found[after] = entry
        best = found
    if not best:
        raise ValueError("too little")
    return min(best.values(), key=lambda entry: entry[0])[1]
