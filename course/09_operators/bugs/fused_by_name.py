"""fused: goes by the names of operators, and not by their kind"""


def fused(operators, sizes, wanted):
    groups, last = [], True
    for operator in operators:
        product = operator[0].startswith("mm")
        if product or last:
            groups.append([])
        groups[-1].append(operator)
        last = product
    found = []
    for group in groups:
        made, read = {write for *_, write in group}, {name for _, _, reads, _ in group for name in reads}
        others = {name for one in operators if one not in group for name in one[2]} | set(wanted)
        moved = (read - made) | (made & others)
        found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))
    return found
