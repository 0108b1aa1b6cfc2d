"""newest: reads everything, and makes the disk forget it"""

def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    data, noted = {name: disk.read(name) for name in names}, []
    for step in sorted((int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(data[manifest])
            noted.append([0, "read", manifest, ""])
            saved, ranks, files = body["step"], body["ranks"], body["files"]
        except (ValueError, KeyError, TypeError):
            refused[manifest] = "damaged"
            continue
        if saved != step:
            refused[manifest] = "foreign"
            continue
        for part in [f"{step}/rank-{r}" for r in range(ranks)]:
            if part not in files or part not in names:
                wrong[part] = "missing"
            elif disk.size(part) != files[part][0]:
                wrong[part] = "size"
            elif noted.append([0, "read", part, ""]) or crc32(data[part]) != files[part][1]:
                wrong[part] = "checksum"
        if not wrong:
            disk.log[:] = noted
            return step, refused
        refused |= wrong
    disk.log[:] = noted
    return None, refused
