"""step_time: a list that hangs is waited for without end"""

def step_time(lists, forward, backward):
    S, ended, free, position = len(lists), {}, [0.0] * len(lists), [0] * len(lists)
    while any(position[s] < len(words) for s, words in enumerate(lists)):
        for s, words in enumerate(lists):
            if position[s] == len(words):
                continue
            kind, m = words[position[s]][0], words[position[s]][1:]
            needs = [("F", m, s - 1)] if s else []
            if kind == "B":
                needs = [("F", m, s)] + ([("B", m, s + 1)] if s < S - 1 else [])
            if all(need in ended for need in needs):
                start = max([free[s], *(ended[need] for need in needs)])
                free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]
                position[s] += 1
    return max(free)
