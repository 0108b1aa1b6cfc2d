"""needed: vertical sync with the last stage's version"""

def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    rows = []
    for words in lists:
        M = sum(word[0] == "F" for word in words)
        before = [words[: words.index(f"F{m}")] for m in range(M)]
        rows.append([sum(word[0] == "U" for word in some) for some in before])
    return [rows[-1] if vertical else row for row in rows]
