"""segments: the fewest equal segments"""

def segments(L, budget):
    for k in range(1, L + 1):
        lengths = [L // k + (j < L % k) for j in range(k)]
        if max(j + n for j, n in enumerate(lengths)) <= budget:
            return lengths
    raise ValueError("too many")
