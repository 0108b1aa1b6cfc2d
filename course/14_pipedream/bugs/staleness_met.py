"""staleness: the version that the forward meets"""

def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    M = sum(word[0] == "F" for word in words)
    between = [words[: words.index(f"F{m}")] for m in range(M)]
    return [sum(word[0] == "U" for word in some) for some in between]
