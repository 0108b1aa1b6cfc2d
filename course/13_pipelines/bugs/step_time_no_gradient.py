"""step_time: a backward does not wait for the stage after"""

def step_time(lists, forward, backward):
    S, ended, free, position = len(lists), {}, [0.0] * len(lists), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for s, words in enumerate(lists):
            while position[s] < len(words):
                kind, m = words[position[s]][0], words[position[s]][1:]
                needs = [("F", m, s - 1)] if s else []
                if kind == "B":
                    needs = [("F", m, s)]
                if any(need not in ended for need in needs):
                    break
                start = max([free[s], *(ended[need] for need in needs)])
                free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]
                position[s], moved = position[s] + 1, True
    if any(position[s] < len(words) for s, words in enumerate(lists)):
        raise ValueError(f"the stages hang at positions {position}")
    return max(free)
