"""staleness: all actions between F and B count"""

def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    M = sum(word[0] == "F" for word in words)
    between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
    return [len(some) - 1 for some in between]
