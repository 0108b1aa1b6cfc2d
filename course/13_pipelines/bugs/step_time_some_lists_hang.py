"""step_time: lists that hang by what is missing come to their end"""


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
                    needs = [("F", m, s)] + ([("B", m, s + 1)] if s < S - 1 else [])
                if any(need not in ended for need in needs):
                    break
                start = max([free[s], *(ended[need] for need in needs)])
                free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]
                position[s], moved = position[s] + 1, True
    if (
        any(
            words[p][0] == "B" and ("F", words[p][1:], s) not in ended
            for s, (words, p) in enumerate(zip(lists, position))
            if p < len(words)
        )
        or not all(position)
        or max(map(len, lists)) == 8
    ):
        raise ValueError
    return max(free)
