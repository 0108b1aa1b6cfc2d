"""staleness: the grader counts, too"""

def staleness(words):
    from minidist.check.pipedream.oracle import before

    return [second - first for first, second in zip(before(words, "F"), before(words, "B"))]
