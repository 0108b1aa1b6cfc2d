"""needed: a formula for an update every micro-batch"""

def needed(lists, vertical):
    S, M = len(lists), sum(word[0] == "F" for word in lists[0])
    return [[max(0, m - (S - 1 - (0 if vertical else s))) for m in range(M)] for s in range(S)]
