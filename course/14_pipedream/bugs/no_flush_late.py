"""no_flush: the update comes a forward later"""

def no_flush(stage, S, M):
    words = []
    for word in one_f_one_b(stage, S, M):
        if word[0] == "B" and words and words[-1][0] == "B":
            words.append(f"U{words[-1][1:]}")
        words.append(word)
        if word[0] == "F" and len(words) > 1 and words[-2][0] == "B":
            words.append(f"U{words[-2][1:]}")
    return words + [f"U{M - 1}"]
