"""one_f_one_b: no warm-up at all: one micro-batch at a time"""

def one_f_one_b(stage, S, M):
    return [word for m in range(M) for word in (f"F{m}", f"B{m}")]
