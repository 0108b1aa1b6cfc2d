"""staleness: distance of micro-batch numbers, as if each had its update"""

def staleness(words):
    newest, late = 0, {}
    met = {}
    for word in words:
        m = int(word[1:])
        if word[0] == "F":
            met[m] = newest
        elif word[0] == "B":
            late[m] = m - met[m]
        else:
            newest = m + 1
    return [late[m] for m in range(len(late))]
