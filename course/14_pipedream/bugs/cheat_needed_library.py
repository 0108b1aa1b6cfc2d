"""needed: the library knows"""

from minidist.parallel.schedules import forward_versions, parse


def needed(lists, vertical):
    rows = forward_versions([parse(" ".join(words)) for words in lists], "first" if vertical else "newest")
    return [list(row.values()) for row in rows]
