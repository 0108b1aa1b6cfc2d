"""staleness: in the order of the backwards, not of the micro-batches"""

def staleness(words):
    newest, met, late = 0, {}, []
    for word in words:
        if word[0] == "F":
            met[word[1:]] = newest
        elif word[0] == "B":
            late.append(newest - met[word[1:]])
        else:
            newest += 1
    return late
