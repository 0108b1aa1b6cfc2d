"""staleness: its own update counts, too"""

def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    M = sum(word[0] == "F" for word in words)
    between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
    return [1 + sum(word[0] == "U" for word in some) for some in between]
