"""one_f_one_b: the warm-up is that of the mirrored stage"""

def one_f_one_b(stage, S, M):
    warm = min(M, stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
