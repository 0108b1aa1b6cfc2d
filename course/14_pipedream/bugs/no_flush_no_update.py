"""no_flush: lesson 13's list"""

def no_flush(stage, S, M):
    return one_f_one_b(stage, S, M)
