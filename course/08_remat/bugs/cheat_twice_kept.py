"""twice: what first gave is kept"""

def twice(fn):
    kept = []

    def first(*args):
        kept.append(fn(*args))
        return kept[-1]

    return first, lambda *args: kept.pop()
