"""staleness: takes B12 for B1"""


def staleness(words):
    M = sum(word[0] == "F" for word in words)
    out = []
    for m in range(M):
        between = "".join(words).split(f"F{m}")[1].split(f"B{m}")[0]
        out.append(between.count("U"))
    return out
