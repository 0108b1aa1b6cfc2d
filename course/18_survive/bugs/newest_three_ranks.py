"""newest: believes that there are always three ranks"""

def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    for step in sorted((int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(disk.read(manifest))
            saved, ranks, files = body["step"], body["ranks"], body["files"]
        except (ValueError, KeyError, TypeError):
            refused[manifest] = "damaged"
            continue
        if saved != step:
            refused[manifest] = "foreign"
            continue
        for part in [f"{step}/rank-{r}" for r in range(3)]:
            if part not in files or part not in names:
                wrong[part] = "missing"
            elif disk.size(part) != files[part][0]:
                wrong[part] = "size"
            elif crc32(disk.read(part)) != files[part][1]:
                wrong[part] = "checksum"
        if not wrong:
            return step, refused
        refused |= wrong
    return None, refused
