"""one_f_one_b: every stage warms up like stage 0"""

def one_f_one_b(stage, S, M):
    warm = min(M, S - 1)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
