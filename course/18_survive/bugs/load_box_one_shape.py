"""load_box: has the whole matrix in mind, and its shape in the code"""

def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    (top, bottom), (left, right) = wanted
    whole, filled = torch.empty(7, 10, dtype=torch.float64), 0
    for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one
        (a, b), (c, d) = ((max(low, first), min(high, end)) for (low, high), (first, end) in zip(box, wanted))
        if a < b and c < d:
            row, column = box[0][0], box[1][0]
            part = read(name, (a - row, b - row), (c - column, d - column))
            whole[a:b, c:d] = part
            filled += part.numel()
    found = whole[top:bottom, left:right]
    if filled < found.numel():
        raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
    return found
