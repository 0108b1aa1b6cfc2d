"""one_f_one_b: one backward, one forward"""

def one_f_one_b(stage, S, M):
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"B{i}", f"F{warm + i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
