"""fused: a tensor that is read twice counts twice"""

def fused(operators, sizes, wanted):
    groups, last = [], "product"
    for operator in operators:
        if operator[1] == "product" or last == "product":
            groups.append([])
        groups[-1].append(operator)
        last = operator[1]
    found = []
    for group in groups:
        made, read = {write for *_, write in group}, {name for _, _, reads, _ in group for name in reads}
        others = {name for one in operators if one not in group for name in one[2]} | set(wanted)
        times = [name for one in group for name in one[2] if name not in made]
        moved = sum(sizes[name] for name in [*times, *(made & others)])
        found.append(([one[0] for one in group], moved))
    return found
