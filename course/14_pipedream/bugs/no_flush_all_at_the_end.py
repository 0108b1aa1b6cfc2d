"""no_flush: all updates come at the end"""

def no_flush(stage, S, M):
    return one_f_one_b(stage, S, M) + [f"U{m}" for m in range(M)]
