"""step_time: (M + S − 1) times the slowest stage, whatever the lists"""

def step_time(lists, forward, backward):
    slots = len(lists[0]) // 2 + len(lists) - 1
    return slots * (max(forward) + max(backward))
