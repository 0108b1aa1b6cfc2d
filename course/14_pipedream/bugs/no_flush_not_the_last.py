"""no_flush: the last micro-batch has no update"""

def no_flush(stage, S, M):
    """This stage's list of words."""
    words = []
    for word in one_f_one_b(stage, S, M):
        words.append(word)
        if word[0] == "B" and word != f"B{M - 1}":
            words.append(f"U{word[1:]}")
    return words
