"""best_plan: all plans are tried"""

from itertools import product


def best_plan(costs, memories, budget):
    found = None
    for kept in product([True, False], repeat=len(costs)):
        held, fits = 0, True
        for nbytes, k in zip(memories, kept):
            fits = fits and held + nbytes <= budget
            held += nbytes * k
        paid = sum(c for c, k in zip(costs, kept) if not k)
        if fits and (found is None or paid < found[0]):
            found = paid, list(kept)
    if found is None:
        raise ValueError("too little")
    return found[1]
