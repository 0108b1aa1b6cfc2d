"""cut: each stage takes layers up to the mean"""

def cut(costs, S):
    if len(costs) < S:
        raise ValueError("too few layers")
    parts, first, mean = [], 0, sum(costs) / S
    for s in range(S - 1):
        end = first + 1
        while end < len(costs) - (S - 1 - s) and sum(costs[first : end + 1]) <= mean:
            end += 1
        parts.append((first, end))
        first = end
    return parts + [(first, len(costs))]
