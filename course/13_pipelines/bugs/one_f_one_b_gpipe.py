"""one_f_one_b: all forwards first: that is GPipe"""

def one_f_one_b(stage, S, M):
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]
