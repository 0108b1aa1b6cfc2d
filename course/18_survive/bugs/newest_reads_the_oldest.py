"""newest: reads the oldest manifest before it looks at the newest"""

def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    steps = sorted((int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True)
    texts = {step: disk.read(f"{step}/manifest") for step in steps[-1:]}
    for step in steps:
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(texts[step] if step in texts else disk.read(manifest))
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
            elif crc32(disk.read(part)) != files[part][1]:
                wrong[part] = "checksum"
        if not wrong:
            return step, refused
        refused |= wrong
    return None, refused
