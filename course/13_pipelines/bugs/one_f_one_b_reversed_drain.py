"""one_f_one_b: the last backwards run the other way round"""

def one_f_one_b(stage, S, M):
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in reversed(range(M - warm, M))]
