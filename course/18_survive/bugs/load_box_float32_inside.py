"""load_box: puts the numbers together in float32, and makes float64 of them at the end"""

def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    (top, bottom), (left, right) = wanted
    found, filled = torch.empty(bottom - top, right - left), 0
    for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one
        (a, b), (c, d) = ((max(low, first), min(high, end)) for (low, high), (first, end) in zip(box, wanted))
        if a < b and c < d:
            row, column = box[0][0], box[1][0]
            part = read(name, (a - row, b - row), (c - column, d - column))
            found[a - top : b - top, c - left : d - left] = part
            filled += part.numel()
    if filled < found.numel():
        raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
    return found.double()
