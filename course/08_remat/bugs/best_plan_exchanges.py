"""best_plan: rules of thumb, then exchanges of two layers"""


def best_plan(costs, memories, budget):
    n = len(costs)
    if max(memories) > budget:
        raise ValueError

    def fits(k):
        return max(sum(m for m, x in zip(memories[:l], k) if x) + memories[l] for l in range(n)) <= budget

    best = None
    for power in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 5, -1):
        kept = [False] * n
        if fits([False] * (n - 1) + [True]):
            kept[-1] = True
        for i in sorted(range(n), key=lambda i: -costs[i] / memories[i] ** power):
            kept[i] = True
            kept[i] = fits(kept)
        for i in range(n):
            for j in range(n):
                if kept[i] != kept[j] and (costs[i] - costs[j]) * (kept[j] - kept[i]) > 0:
                    other = kept[:]
                    other[i], other[j] = kept[j], kept[i]
                    if fits(other):
                        kept = other
        c = sum(c for c, k in zip(costs, kept) if not k)
        if best is None or c < best[0]:
            best = c, kept
    return best[1]
