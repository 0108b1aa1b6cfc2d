"""one_f_one_b: one forward less than needed to warm up"""

def one_f_one_b(stage, S, M):
    warm = max(0, min(M, S - 2 - stage))
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
