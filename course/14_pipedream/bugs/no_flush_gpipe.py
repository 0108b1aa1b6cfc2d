"""no_flush: all forwards first"""

def no_flush(stage, S, M):
    return [f"F{m}" for m in range(M)] + [word for m in range(M) for word in (f"B{m}", f"U{m}")]
