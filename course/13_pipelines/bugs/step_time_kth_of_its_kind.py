"""step_time: the k-th forward of a list for micro-batch k"""


def step_time(lists, forward, backward):
    S, M = len(lists), len(lists[0]) // 2
    ended, free, pos, n = {}, [0.0] * S, [0] * S, 0
    go = True
    while go:
        go = False
        for s, words in enumerate(lists):
            while pos[s] < len(words):
                w = words[pos[s]]
                k = sum(x[0] == w[0] for x in words[: pos[s]])  # the k-th of its kind
                needs = [("F", k, s - 1)] if s else []
                if w[0] == "B":
                    needs = [("F", k, s)] + ([("B", k, s + 1)] if s < S - 1 else [])
                if any(x not in ended for x in needs):
                    break
                free[s] = ended[w[0], k, s] = (
                    max([free[s], *(ended[x] for x in needs)]) + (forward if w[0] == "F" else backward)[s]
                )
                pos[s] += 1
                go = True
    if any(pos[s] < len(w) for s, w in enumerate(lists)):
        raise ValueError
    return max(free)
