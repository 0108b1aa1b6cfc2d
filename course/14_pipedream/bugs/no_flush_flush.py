"""no_flush: one update, at the end"""

def no_flush(stage, S, M):
    return one_f_one_b(stage, S, M) + [f"U{M - 1}"]
