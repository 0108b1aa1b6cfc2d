"""needed: the newest when the backward comes"""

def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    rows = []
    for words in lists:
        M = sum(word[0] == "F" for word in words)
        before = [words[: words.index(f"B{m}")] for m in range(M)]
        rows.append([sum(word[0] == "U" for word in some) for some in before])
    return [rows[0] if vertical else row for row in rows]
