"""zero_bubble: fewer micro-batches than are kept back"""

def zero_bubble(stage, S, M):
    warm, late = min(M, S - 1 - stage), stage
    words = [f"F{m}" for m in range(warm)]
    for i in range(M):
        if warm + i < M:
            words.append(f"F{warm + i}")
        words.append(f"I{i}")
        if i >= late:
            words.append(f"W{i - late}")
    return words + [f"W{m}" for m in range(M - late, M)]
