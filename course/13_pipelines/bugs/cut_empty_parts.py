"""cut: a stage may be empty"""

def cut(costs, S):
    if len(costs) < S:
        raise ValueError("too few layers")
    low = max(costs)
    while True:
        parts, first, total = [], 0, 0
        for end, cost in enumerate(costs):
            if total + cost > low:
                parts.append((first, end))
                first, total = end, 0
            total += cost
        parts.append((first, len(costs)))
        if len(parts) <= S:
            return parts + [(len(costs), len(costs))] * (S - len(parts))
        low += 1
