"""groups: asks what it is held against"""

def groups(sizes):
    from minidist.check.hybrid.oracle import lines

    return lines(sizes)
