"""no_flush: warm-up by the stage's number"""

def no_flush(stage, S, M):
    """This stage's list of words."""
    words = []
    for word in one_f_one_b(S - 1 - stage, S, M):
        words.append(word)
        if word[0] == "B":
            words.append(f"U{word[1:]}")
    return words
