"""staleness: the formula, without a look at the list"""

def staleness(words):
    M = sum(word[0] == "F" for word in words)
    warm = words.index("B0")
    return [min(m, warm - 1) for m in range(M)]
