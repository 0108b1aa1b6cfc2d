"""one_f_one_b: the last backwards are missing"""

def one_f_one_b(stage, S, M):
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words
