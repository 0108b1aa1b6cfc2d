"""run_stage: runs its list on what it was given, and no message is sent"""

def run_stage(down, up, part, words, xs, ys, loss_fn):
    for word in words:
        if word[0] == "F":
            y = part(xs[int(word[1:])])
        else:
            y.sum().backward()
