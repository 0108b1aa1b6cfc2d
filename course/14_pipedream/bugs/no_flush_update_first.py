"""no_flush: the update comes before its backward"""

def no_flush(stage, S, M):
    """This stage's list of words."""
    words = []
    for word in one_f_one_b(stage, S, M):
        if word[0] == "B":
            words.append(f"U{word[1:]}")
        words.append(word)
    return words
