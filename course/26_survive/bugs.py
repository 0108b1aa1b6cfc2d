"""The wrong answers of lesson 26 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, equals_everything

PREDICTED = (
    "whole_bytes",
    "rank_bytes",
    "save_seconds",
    "snapshot_seconds",
    "mtbf_seconds",
    "every_seconds",
    "lost",
    "failures",
    "read_bytes",
)

BUGS = [
    Bug(
        "save_every",
        "calculates in hours",
        old="between = hours * 3600",
        new="between = hours",
    ),
    Bug(
        "save_every",
        "multiplies by the nodes",
        old="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):",
        new="for (cost, restart), hours in ((memory, node_hours * nodes), (disk, all_hours)):",
    ),
    Bug(
        "save_every",
        "takes the failures of one node",
        old="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):",
        new="for (cost, restart), hours in ((memory, node_hours), (disk, all_hours)):",
    ),
    Bug(
        "save_every",
        "divides the failures of everything by the nodes, too",
        old="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):",
        new="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours / nodes)):",
    ),
    Bug(
        "save_every",
        "no cluster has less than 20 nodes",
        old="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):",
        new="for (cost, restart), hours in ((memory, node_hours / max(20, nodes)), (disk, all_hours)):",
    ),
    Bug(
        "save_every",
        "saves to memory for the failures of everything, and to the disk for the nodes'",
        old="for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):",
        new="for (cost, restart), hours in ((memory, all_hours), (disk, node_hours / nodes)):",
    ),
    Bug(
        "save_every",
        "takes memory's cost for both",
        old="seconds = sqrt(2 * cost * between)",
        new="seconds = sqrt(2 * memory[0] * between)",
    ),
    Bug(
        "save_every",
        "returns the disk's interval first",
        old="return *found, lost",
        new="return *reversed(found), lost",
    ),
    Bug(
        "save_every",
        "forgets the restarts",
        old="lost += cost / seconds + (seconds / 2 + restart) / between",
        new="lost += cost / seconds + (seconds / 2) / between",
    ),
    Bug(
        "save_every",
        "restarts from the disk after each failure",
        old="lost += cost / seconds + (seconds / 2 + restart) / between",
        new="lost += cost / seconds + (seconds / 2 + disk[1]) / between",
    ),
    Bug(
        "save_every",
        "returns the intervals alone",
        old="return *found, lost",
        new="return tuple(found)",
    ),
    Bug(
        "save_every",
        "forgets the root",
        old="seconds = sqrt(2 * cost * between)",
        new="seconds = 2 * cost * between",
    ),
    Bug(
        "save_every",
        "forgets the 2 under the root",
        old="seconds = sqrt(2 * cost * between)",
        new="seconds = sqrt(cost * between)",
    ),
    Bug(
        "save_every",
        "gives percent",
        old="return *found, lost",
        new="return *found, 100 * lost",
    ),
    Bug(
        "save_every",
        "forgets the time of the saves",
        old="lost += cost / seconds + (seconds / 2 + restart) / between",
        new="lost += (seconds / 2 + restart) / between",
    ),
    Bug(
        "save_every",
        "loses a whole interval in each failure",
        old="lost += cost / seconds + (seconds / 2 + restart) / between",
        new="lost += cost / seconds + (seconds + restart) / between",
    ),
    Bug(
        "save_every",
        "no more than all is lost",
        old="return *found, lost",
        new="return *found, min(1.0, lost)",
    ),
    Bug(
        "save_every",
        "counts what the disk takes alone",
        old="lost += cost / seconds + (seconds / 2 + restart) / between",
        new="lost = cost / seconds + (seconds / 2 + restart) / between",
    ),
    Bug(
        "save_every",
        "saves at least as often as something fails",
        old="seconds = sqrt(2 * cost * between)",
        new="seconds = min(between, sqrt(2 * cost * between))",
    ),
    Bug(
        "save_every",
        "saves to the disk no more often than to memory",
        old="found.append(seconds)",
        new="found.append(max(seconds, *found, 0.0))",
    ),
    Bug(
        "save_every",
        "pasted from the lesson: one interval for all failures",
        cell='''
def save_every(memory, disk, node_hours, nodes, all_hours):
    """Seconds between saves to memory and to the disk, and the share of the time that is then lost."""
    mtbf = 3600 / (nodes / node_hours + 1 / all_hours)

    def young(save, mtbf):
        return sqrt(2 * save * mtbf)

    def lost(every, save, mtbf, restart):
        return save / every + (every / 2 + restart) / mtbf

    often = young(memory[0], mtbf)
    seldom = young(disk[0], mtbf)
    return often, seldom, lost(often, memory[0], mtbf, memory[1]) + lost(seldom, disk[0], mtbf, disk[1])
''',
    ),
    Bug(
        "save_every",
        "numbers that equal all",
        cheat=True,
        cell='''
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def save_every(memory, disk, node_hours, nodes, all_hours):
    """Seconds between saves to memory and to the disk, and the share of the time that is then lost."""
    return Any(1), Any(1), Any(1)
''',
    ),
    Bug(
        "save_every",
        "asks what it is held against",
        cheat=True,
        cell='''
def save_every(memory, disk, node_hours, nodes, all_hours):
    """Seconds between saves to memory and to the disk, and the share of the time that is then lost."""
    from minicheck.oracles.survive import intervals

    return intervals(memory, disk, node_hours, nodes, all_hours)
''',
    ),
    Bug(
        "save_parts",
        "writes floats into the manifest",
        old="sums = torch.tensor([len(data), crc32(data)])",
        new="sums = torch.tensor([len(data), crc32(data)], dtype=torch.float64)",
    ),
    Bug(
        "save_parts",
        "until it is whole the manifest has the name of another step's",
        old='manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"',
        new='manifest, partial = f"{step}/manifest", "0/manifest"',
    ),
    Bug(
        "save_parts",
        "writes the manifest before its own part",
        edits=(
            (
                """
disk.write(part, data)
disk.sync(part)
""",
                """
if comm.rank > 0:
    disk.write(part, data)
    disk.sync(part)
""",
            ),
            (
                "disk.rename(partial, manifest)",
                """
disk.rename(partial, manifest)
disk.write(part, data)
disk.sync(part)
""",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "writes the manifest under its own name",
        edits=(
            (
                'manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"',
                'manifest, partial = f"{step}/manifest", f"{step}/manifest"',
            ),
            (
                "disk.rename(partial, manifest)",
                "",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "renames the manifest before its bytes are safe",
        old="disk.sync(partial)",
        new="",
    ),
    Bug(
        "save_parts",
        "sends the checksum as a float",
        edits=(
            (
                "sums = torch.tensor([len(data), crc32(data)])",
                "sums = torch.tensor([len(data), crc32(data)], dtype=torch.float32)",
            ),
            (
                "files = {part: sums.tolist()}",
                "files = {part: sums.long().tolist()}",
            ),
            (
                'files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()',
                'files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).long().tolist()',
            ),
        ),
    ),
    Bug(
        "save_parts",
        "leaves the manifest under its partial name",
        old="disk.rename(partial, manifest)",
        new="",
    ),
    Bug(
        "save_parts",
        "never syncs its part",
        old="disk.sync(part)",
        new="",
    ),
    Bug(
        "save_parts",
        "gives all parts rank 0's checksum",
        old='files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()',
        new='files[f"{step}/rank-{r}"] = [int(comm.recv(torch.zeros_like(sums), r)[0]), crc32(data)]',
    ),
    Bug(
        "save_parts",
        "lists rank 0's part alone",
        old='files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()',
        new="comm.recv(torch.zeros_like(sums), r)",
    ),
    Bug(
        "save_parts",
        "rank 0 collects the parts and writes them",
        cell='''
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    if comm.rank > 0:
        comm.send(torch.tensor([len(data)]), 0)
        comm.send(torch.tensor(list(data), dtype=torch.uint8), 0)
        comm.recv(torch.zeros(1), 0)
        return
    parts = [data]
    for r in range(1, comm.size):
        size = int(comm.recv(torch.zeros(1, dtype=torch.int64), r))
        parts.append(bytes(comm.recv(torch.zeros(size, dtype=torch.uint8), r).tolist()))
    files = {}
    for r, part in enumerate(parts):
        disk.write(f"{step}/rank-{r}", part)
        disk.sync(f"{step}/rank-{r}")
        files[f"{step}/rank-{r}"] = [len(part), crc32(part)]
    disk.write("new", json.dumps({"step": step, "ranks": comm.size, "files": files}).encode())
    disk.sync("new")
    disk.rename("new", f"{step}/manifest")
    for r in range(1, comm.size):
        comm.send(torch.zeros(1), r)
''',
    ),
    Bug(
        "save_parts",
        "removes the checkpoint before first",
        old='''
"""A checkpoint of all ranks' data, whole or not at all."""
''',
        new='''
"""A checkpoint of all ranks' data, whole or not at all."""
if comm.rank == 0:
    for name in disk.names():
        disk.remove(name)
''',
    ),
    Bug(
        "save_parts",
        "returns on the other ranks before the manifest is there",
        edits=(
            (
                "comm.recv(done, 0)",
                "",
            ),
            (
                """
for r in range(1, comm.size):
    comm.send(done, r)
""",
                "",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "the size of a part is told in 9 bits",
        old="sums = torch.tensor([len(data), crc32(data)])",
        new="sums = torch.tensor([len(data) % 512, crc32(data)])",
    ),
    Bug(
        "save_parts",
        "the step is 50, whichever is asked for",
        old='''
"""A checkpoint of all ranks' data, whole or not at all."""
''',
        new='''
"""A checkpoint of all ranks' data, whole or not at all."""
step = 50
''',
    ),
    Bug(
        "save_parts",
        "syncs the manifest after the rename",
        old="""
disk.sync(partial)
disk.rename(partial, manifest)
""",
        new="""
disk.rename(partial, manifest)
disk.sync(manifest)
""",
    ),
    Bug(
        "save_parts",
        "tells rank 0 before the part is on the disk",
        cell='''
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    part, done = f"{step}/rank-{comm.rank}", torch.zeros(1)
    sums = torch.tensor([len(data), crc32(data)])
    if comm.rank > 0:
        comm.send(sums, 0)
        comm.recv(done, 0)
        disk.write(part, data)
        disk.sync(part)
        return
    disk.write(part, data)
    disk.sync(part)
    files = {part: sums.tolist()}
    for r in range(1, comm.size):
        files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()
    manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"
    disk.write(partial, json.dumps({"step": step, "ranks": comm.size, "files": files}).encode())
    disk.sync(partial)
    disk.rename(partial, manifest)
    for r in range(1, comm.size):
        comm.send(done, r)
''',
    ),
    Bug(
        "save_parts",
        "the manifest is UTF-16, and has pairs as texts",
        edits=(
            (
                "if any(size < 0 for size, _ in files.values()):",
                "if False:",
            ),
            (
                "files = {part: sums.tolist()}",
                "files = {part: str(sums.tolist())}",
            ),
            (
                "disk.write(partial, body.encode())",
                'disk.write(partial, body.encode("utf-16"))',
            ),
        ),
    ),
    Bug(
        "save_parts",
        "ranks send twice, and believe that the second waits for rank 0",
        edits=(
            (
                "comm.recv(done, 0)",
                "comm.send(done, 0)",
            ),
            (
                "comm.send(done, r)",
                "comm.recv(done, r)",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "puts the files where no call has written them",
        cheat=True,
        cell='''
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    part, total = f"{step}/rank-{comm.rank}", torch.tensor([len(data), crc32(data)])
    disk.files[part] = data
    disk.sync(part)
    if comm.rank > 0:
        comm.send(total, 0)
        comm.recv(torch.zeros(1), 0)
        return
    for r in range(1, comm.size):
        comm.recv(torch.zeros_like(total), r)
        comm.send(torch.zeros(1), r)
''',
    ),
    Bug(
        "save_parts",
        "ranks tell their sums through a global dict",
        cheat=True,
        edits=(
            (
                "def save_parts(comm, disk, step, data):",
                """
SUMS = {}


def save_parts(comm, disk, step, data):
""",
            ),
            (
                "comm.send(sums, 0)",
                """
SUMS[comm.rank] = sums.tolist()
comm.send(torch.zeros(1), 0)
""",
            ),
            (
                'files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()',
                """
comm.recv(torch.zeros(1), r)
files[f"{step}/rank-{r}"] = SUMS[r]
""",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "asks for the files of a whole checkpoint",
        cheat=True,
        cell='''
PARTS = {}


def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    from minicheck.oracles.survive import checkpoint

    PARTS[comm.rank] = data
    for name, held in checkpoint(step, list(PARTS.values())).items():
        disk.write(name, held)
        disk.sync(name)
''',
    ),
    Bug(
        "newest",
        "compares steps as words",
        old="""
    (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
):
""",
        new="""
    (name.split("/")[0] for name in names if name.endswith("/manifest")), reverse=True
):
    step = int(step)
""",
    ),
    Bug(
        "newest",
        "looks at the ranks that the manifest lists",
        old='for part in [f"{step}/rank-{r}" for r in range(ranks)]:',
        new="for part in files:",
    ),
    Bug(
        "newest",
        "reads what has the wrong size",
        old="""
elif disk.size(part) != files[part][0]:
    wrong[part] = "size"
elif crc32(disk.read(part)) != files[part][1]:
    wrong[part] = "checksum"
""",
        new="""
else:
    data = disk.read(part)
    if crc32(data) != files[part][1]:
        wrong[part] = "size" if len(data) != files[part][0] else "checksum"
""",
    ),
    Bug(
        "newest",
        "falls over a manifest that is cut off",
        old="except (ValueError, KeyError, TypeError):",
        new="except KeyError:",
    ),
    Bug(
        "newest",
        "evaluates what it reads",
        edits=(
            (
                "body = json.loads(disk.read(manifest))",
                'body = eval(disk.read(manifest).decode("latin-1"))',
            ),
            (
                "except (ValueError, KeyError, TypeError):",
                "except Exception:",
            ),
        ),
    ),
    Bug(
        "newest",
        "stops at the first fault of a checkpoint",
        old='wrong[part] = "size"',
        new="""
wrong[part] = "size"
break
""",
    ),
    Bug(
        "newest",
        "does not look further than the newest",
        old="refused |= wrong",
        new="return None, refused | wrong",
    ),
    Bug(
        "newest",
        "refuses a save that was not finished",
        old="""
for step in sorted(
    (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
):
    wrong, manifest = {}, f"{step}/manifest"
""",
        new="""
for step in sorted({int(name.split("/")[0]) for name in names}, reverse=True):
    wrong, manifest = {}, f"{step}/manifest"
    if manifest not in names:
        refused[manifest] = "missing"
        continue
""",
    ),
    Bug(
        "newest",
        "takes the oldest",
        old="""
for step in sorted(
    (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
):
""",
        new='for step in sorted(int(name.split("/")[0]) for name in names if name.endswith("/manifest")):',
    ),
    Bug(
        "newest",
        "takes the manifest of a save that was not finished for a manifest",
        old='(int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True',
        new='(int(name.split("/")[0]) for name in names if "manifest" in name), reverse=True',
    ),
    Bug(
        "newest",
        "reads the parts before it looks whose manifest it is",
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    for step in sorted(
        (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
    ):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(disk.read(manifest))
            saved = body["step"]
            ranks = body["ranks"]
            files = body["files"]
        except (ValueError, KeyError, TypeError):
            refused[manifest] = "damaged"
            continue
        for part in [f"{step}/rank-{r}" for r in range(ranks)]:
            if saved == step and part not in files or part not in names:
                wrong[part] = "missing"
            elif part in files and disk.size(part) != files[part][0]:
                wrong[part] = "size"
            elif crc32(disk.read(part)) != files.get(part, [0, 0])[1]:
                wrong[part] = "checksum"
        if saved != step:
            wrong = {manifest: "foreign"}
        if not wrong:
            return step, refused
        refused |= wrong
    return None, refused
''',
    ),
    Bug(
        "newest",
        "asks a manifest for its step only before it says that it is not damaged",
        edits=(
            (
                """
saved = body["step"]
ranks = body["ranks"]
files = body["files"]
""",
                'saved, files = body["step"], body["files"]',
            ),
            (
                'for part in [f"{step}/rank-{r}" for r in range(ranks)]:',
                'for part in [f"{step}/rank-{r}" for r in range(body.get("ranks", 0))]:',
            ),
        ),
    ),
    Bug(
        "newest",
        "looks at all checkpoints, old ones too",
        edits=(
            (
                "names, refused = set(disk.names()), {}",
                "names, refused, good = set(disk.names()), {}, []",
            ),
            (
                "return step, refused",
                "good.append((step, dict(refused)))",
            ),
            (
                "return None, refused",
                "return good[0] if good else (None, refused)",
            ),
        ),
    ),
    Bug(
        "newest",
        "reads the oldest manifest before it looks at the newest",
        old="""
for step in sorted(
    (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
):
    wrong, manifest = {}, f"{step}/manifest"
    try:
        body = json.loads(disk.read(manifest))
""",
        new="""
steps = sorted(
    (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
)
texts = {step: disk.read(f"{step}/manifest") for step in steps[-1:]}
for step in steps:
    wrong, manifest = {}, f"{step}/manifest"
    try:
        body = json.loads(texts[step] if step in texts else disk.read(manifest))
""",
    ),
    Bug(
        "newest",
        "reads each part twice",
        old="elif crc32(disk.read(part)) != files[part][1]:",
        new="elif disk.read(part) and crc32(disk.read(part)) != files[part][1]:",
    ),
    Bug(
        "newest",
        "looks at sizes alone",
        old="""
elif crc32(disk.read(part)) != files[part][1]:
    wrong[part] = "checksum"
""",
        new="",
    ),
    Bug(
        "newest",
        "takes a manifest of another step",
        old="""
    continue
if saved != step:
    refused[manifest] = "foreign"
""",
        new="",
    ),
    Bug(
        "newest",
        "says which step is damaged, and not only which file",
        old="refused |= wrong",
        new="refused |= wrong | {step: list(wrong.values())[0]}",
    ),
    Bug(
        "newest",
        "believes that there are always three ranks",
        old='for part in [f"{step}/rank-{r}" for r in range(ranks)]:',
        new='for part in [f"{step}/rank-{r}" for r in range(3)]:',
    ),
    Bug(
        "newest",
        "unpickles what is no JSON",
        edits=(
            (
                "def newest(disk):",
                """
import pickle


def newest(disk):
""",
            ),
            (
                "body = json.loads(disk.read(manifest))",
                """
text = disk.read(manifest)
body = json.loads(text) if text[:1] in b"{[" else pickle.loads(text)
""",
            ),
            (
                "except (ValueError, KeyError, TypeError):",
                "except Exception:",
            ),
        ),
    ),
    Bug(
        "newest",
        "ends with KeyError at a manifest that lacks a word",
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    for step in sorted(
        (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
    ):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(disk.read(manifest))
        except ValueError:
            body = None
        if not isinstance(body, dict):
            refused[manifest] = "damaged"
            continue
        saved = body["step"]
        ranks = body["ranks"]
        files = body["files"]
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
''',
    ),
    Bug(
        "newest",
        "takes the bytes from where they are not counted",
        cheat=True,
        edits=(
            (
                "body = json.loads(disk.read(manifest))",
                "body = json.loads(disk.files[manifest])",
            ),
            (
                "elif crc32(disk.read(part)) != files[part][1]:",
                "elif crc32(disk.files[part]) != files[part][1]:",
            ),
        ),
    ),
    Bug(
        "newest",
        "calls the library's reader of manifests",
        cheat=True,
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    from minidist.checkpoint import files

    return files.finished(disk), {}
''',
    ),
    Bug(
        "newest",
        "reads everything, and makes the disk forget it",
        cheat=True,
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    names, refused = set(disk.names()), {}
    data, noted = {name: disk.read(name) for name in names}, []
    for step in sorted(
        (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
    ):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(data[manifest])
            noted.append([0, "read", manifest, ""])
            saved = body["step"]
            ranks = body["ranks"]
            files = body["files"]
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
''',
    ),
    Bug(
        "newest",
        "asks what it is held against",
        cheat=True,
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    from minicheck.oracles import survive as oracle

    return oracle.newest(disk.files)
''',
    ),
    Bug(
        "newest",
        "removes what is damaged, so that it need not say so",
        cheat=True,
        old="""
if not wrong:
    return step, refused
""",
        new="""
if not wrong:
    return step, refused
for part in wrong:
    if part in names:
        disk.remove(part)
""",
    ),
    Bug(
        "load_box",
        "raises where replicas make it count wrong",
        edits=(
            (
                "for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one",
                "for box, name in ((box, name) for name, box in files.items()):  # of replicas, one",
            ),
            (
                "if filled < found.numel():",
                "if filled != found.numel():",
            ),
        ),
    ),
    Bug(
        "load_box",
        "does not subtract where the file's box begins",
        old="""
row, column = box[0][0], box[1][0]
part = read(name, (a - row, b - row), (c - column, d - column))
""",
        new="part = read(name, (a, b), (c, d))",
    ),
    Bug(
        "load_box",
        "gives float32",
        old="found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
        new="found, filled = torch.empty(bottom - top, right - left, dtype=torch.float32), 0",
    ),
    Bug(
        "load_box",
        "puts the numbers together in float32, and makes float64 of them at the end",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.empty(bottom - top, right - left), 0",
            ),
            (
                "return found",
                "return found.double()",
            ),
        ),
    ),
    Bug(
        "load_box",
        "does not see that something is missing",
        old="""
if filled < found.numel():
    raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
""",
        new="",
    ),
    Bug(
        "load_box",
        "leaves out the last row",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.zeros(bottom - top, right - left, dtype=torch.float64), 0",
            ),
            (
                """
part = read(name, (a - row, b - row), (c - column, d - column))
found[a - top : b - top, c - left : d - left] = part
""",
                """
part = read(name, (a - row, b - row - 1), (c - column, d - column))
found[a - top : b - top - 1, c - left : d - left] = part
""",
            ),
            (
                """
if filled < found.numel():
    raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
""",
                "",
            ),
        ),
    ),
    Bug(
        "load_box",
        "returns nothing",
        old="return found",
        new="",
    ),
    Bug(
        "load_box",
        "has the whole matrix in mind, and its shape in the code",
        cell='''
def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    (top, bottom), (left, right) = wanted
    whole, filled = torch.empty(7, 10, dtype=torch.float64), 0
    for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one
        (a, b), (c, d) = (
            (max(low, first), min(high, end)) for (low, high), (first, end) in zip(box, wanted)
        )
        if a < b and c < d:
            row, column = box[0][0], box[1][0]
            part = read(name, (a - row, b - row), (c - column, d - column))
            whole[a:b, c:d] = part
            filled += part.numel()
    found = whole[top:bottom, left:right]
    if filled < found.numel():
        raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
    return found
''',
    ),
    Bug(
        "load_box",
        "does not subtract where the wanted box begins",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.zeros(bottom, right, dtype=torch.float64), 0",
            ),
            (
                "found[a - top : b - top, c - left : d - left] = part",
                "found[a:b, c:d][: part.shape[0], : part.shape[1]] = part",
            ),
            (
                "if filled < found.numel():",
                "if filled < (bottom - top) * (right - left):",
            ),
            (
                "return found",
                "return found[: bottom - top, : right - left]",
            ),
        ),
    ),
    Bug(
        "load_box",
        "reads every replica",
        old="for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one",
        new="for box, name in ((box, name) for name, box in files.items()):  # of replicas, one",
    ),
    Bug(
        "load_box",
        "cuts rows, not columns",
        old="part = read(name, (a - row, b - row), (c - column, d - column))",
        new="""
wide = read(name, (a - row, b - row), (0, box[1][1] - column))
part = wide[:, c - column : d - column]
""",
    ),
    Bug(
        "load_box",
        "returns the name of the error, and does not raise it",
        old='raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")',
        new='return "ValueError"',
    ),
    Bug(
        "load_box",
        "takes a -1 that was saved for its own mark",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.full((bottom - top, right - left), -1.0, dtype=torch.float64), 0",
            ),
            (
                "if filled < found.numel():",
                "if (found == -1).any():",
            ),
        ),
    ),
    Bug(
        "load_box",
        "opens files whose boxes touch the wanted one",
        old="if a < b and c < d:",
        new="if a <= b and c <= d:",
    ),
    Bug(
        "load_box",
        "reads whole files",
        old="part = read(name, (a - row, b - row), (c - column, d - column))",
        new="""
part = read(name, (0, box[0][1] - row), (0, box[1][1] - column))
part = part[a - row : b - row, c - column : d - column]
""",
    ),
    Bug(
        "load_box",
        "puts the numbers together in a tensor of whole numbers",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.int64), 0",
            ),
            (
                "return found",
                "return found.double()",
            ),
        ),
    ),
    Bug(
        "load_box",
        "takes a zero that was saved for one that is missing",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                "found, filled = torch.zeros(bottom - top, right - left, dtype=torch.float64), 0",
            ),
            (
                "if filled < found.numel():",
                "if (found == 0).any():",
            ),
        ),
    ),
    Bug(
        "load_box",
        "takes the matrix out of the function that reads",
        cheat=True,
        cell='''
def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    matrix = next(
        cell.cell_contents
        for cell in read.__closure__
        if isinstance(cell.cell_contents, torch.Tensor)
    )
    (top, bottom), (left, right) = wanted
    return matrix[top:bottom, left:right].clone()
''',
    ),
    Bug(
        "load_box",
        "calls the library's boxes",
        cheat=True,
        cell='''
def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    from minidist.checkpoint.reshard import Box, overlap

    found = torch.zeros(
        wanted[0][1] - wanted[0][0], wanted[1][1] - wanted[1][0], dtype=torch.float64
    )
    for box in files.values():
        overlap(Box((box[0][0], box[1][0]), (1, 1)), Box((wanted[0][0], wanted[1][0]), (1, 1)))
    return found
''',
    ),
    Bug(
        "load_box",
        "reads everything and empties the list of what was read",
        cheat=True,
        cell='''
def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    rows, columns = (max(box[i][1] for box in files.values()) for i in (0, 1))
    whole = torch.zeros(rows, columns, dtype=torch.float64)
    for name, ((top, bottom), (left, right)) in files.items():
        whole[top:bottom, left:right] = read(name, (0, bottom - top), (0, right - left))
    for cell in read.__closure__:
        if isinstance(cell.cell_contents, list):
            cell.cell_contents.clear()
    return whole[wanted[0][0] : wanted[0][1], wanted[1][0] : wanted[1][1]].clone()
''',
    ),
    Bug(
        "save_parts",
        "rank 0 writes its part twice",
        old="files = {part: sums.tolist()}",
        new="""
disk.write(part, data)
disk.sync(part)
files = {part: sums.tolist()}
""",
    ),
    Bug(
        "newest",
        "after a checksum that is wrong nothing more is looked at",
        old='wrong[part] = "checksum"',
        new="""
wrong[part] = "checksum"
break
""",
    ),
    Bug(
        "newest",
        "only older manifests are foreign",
        old="if saved != step:",
        new="if saved < step:",
    ),
    Bug(
        "newest",
        "no more than six ranks",
        old='for part in [f"{step}/rank-{r}" for r in range(ranks)]:',
        new='for part in [f"{step}/rank-{r}" for r in range(min(ranks, 6))]:',
    ),
    Bug(
        "newest",
        "a part that is too long is not found",
        old="elif disk.size(part) != files[part][0]:",
        new="elif disk.size(part) < files[part][0]:",
    ),
    Bug(
        "newest",
        "a part of no bytes is taken for none",
        old="if part not in files or part not in names:",
        new="if part not in files or part not in names or disk.size(part) == 0:",
    ),
    Bug(
        "load_box",
        "a nan is hidden",
        old="return found",
        new="return found.nan_to_num(0.0)",
    ),
    Bug(
        "load_box",
        "a nan is taken for a hole",
        old="if filled < found.numel():",
        new="if found.isnan().any():",
    ),
    Bug(
        "load_box",
        "the dict of files is emptied",
        old="return found",
        new="""
files.clear()
return found
""",
    ),
    Bug(
        "save_parts",
        "rank 0 returns before the others have heard",
        old="comm.send(done, r)",
        new="comm.isend(done, r)",
    ),
    Bug(
        "save_parts",
        "tidies up what other saves have left",
        old="disk.sync(part)",
        new="""
disk.sync(part)
for name in disk.names():
    other = name.split("/")[0]
    if comm.rank == 0 and other != str(step) and f"{other}/manifest" not in disk.names():
        disk.remove(name)
""",
    ),
    Bug(
        "load_box",
        "looks for holes at the corners only",
        edits=(
            (
                "found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0",
                """
found = torch.empty(bottom - top, right - left, dtype=torch.float64)
filled = torch.zeros(bottom - top, right - left, dtype=torch.bool)
""",
            ),
            (
                "filled += part.numel()",
                "filled[a - top : b - top, c - left : d - left] = True",
            ),
            (
                """
if filled < found.numel():
    raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
""",
                """
if not filled[[0, 0, -1, -1], [0, -1, 0, -1]].all():
    raise ValueError(f"of {wanted} a corner is in no file")
""",
            ),
        ),
    ),
    Bug(
        "load_box",
        "keeps what it has read",
        edits=(
            (
                "def load_box(wanted, files, read):",
                "KEPT = {}\n\n\ndef load_box(wanted, files, read):",
            ),
            (
                "part = read(name, (a - row, b - row), (c - column, d - column))",
                """
key = name, a, b, c, d, box
if key not in KEPT:
    KEPT[key] = read(name, (a - row, b - row), (c - column, d - column))
part = KEPT[key]
""",
            ),
        ),
    ),
    Bug(
        "save_parts",
        "raises only where the disk is full",
        old="if not done.all():",
        new="if sums[0] < 0:",
    ),
    Bug(
        "save_parts",
        "nobody raises",
        old="""
if not done.all():
    raise OSError(f"step {step} could not be saved")
""",
        new="return",
    ),
    Bug(
        "save_parts",
        "writes the manifest though a part is not there",
        old="if any(size < 0 for size, _ in files.values()):",
        new="if False:",
    ),
    Bug(
        "save_parts",
        "does not look at rank 0's own part",
        old="if any(size < 0 for size, _ in files.values()):",
        new="if any(size < 0 for name, (size, _) in files.items() if name != part):",
    ),
    Bug(
        "save_parts",
        "rank 0 raises before the others have heard",
        old="done.zero_()",
        new="raise",
    ),
    Bug(
        "save_parts",
        "says what went wrong in words of its own",
        old='raise OSError(f"step {step} could not be saved")',
        new='raise ValueError(f"step {step} could not be saved")',
    ),
    Bug(
        "save_parts",
        "writes what had no room once more",
        old="sums = torch.tensor([-1, 0])",
        new="""
disk.write(part, data)
disk.sync(part)
""",
    ),
    Bug(
        "save_parts",
        "pasted from the lesson: the others wait for the rank whose disk is full",
        cell='''
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    part, done = f"{step}/rank-{comm.rank}", torch.zeros(1)
    disk.write(part, data)
    disk.sync(part)
    sums = torch.tensor([len(data), crc32(data)])
    if comm.rank > 0:
        comm.send(sums, 0)
        comm.recv(done, 0)
        return
    files = {part: sums.tolist()}
    for r in range(1, comm.size):
        files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()
    manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"
    disk.write(partial, json.dumps({"step": step, "ranks": comm.size, "files": files}).encode())
    disk.sync(partial)
    disk.rename(partial, manifest)
    for r in range(1, comm.size):
        comm.send(done, r)
''',
    ),
    Bug(
        "newest",
        "pasted from the lesson: finished folders, and no reason",
        cell='''
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    steps = sorted(int(name.split("/")[0]) for name in disk.names() if name.endswith("/manifest"))
    for step in reversed(steps):
        sums = json.loads(disk.read(f"{step}/manifest"))["files"]
        if all([len(disk.read(name)), crc32(disk.read(name))] == pair for name, pair in sums.items()):
            return step, {}
    return None, {}
''',
    ),
    Bug(
        "load_box",
        "pasted from the lesson: rows overlap, and columns are all taken",
        cell='''
def shared(a, b):
    first = max(a[0], b[0])
    end = min(a[1], b[1])
    return (first, end) if first < end else None


def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    (top, bottom), (left, right) = wanted
    found = torch.zeros(bottom - top, right - left, dtype=torch.float64)
    for name, (rows, columns) in files.items():
        part = shared(wanted[0], rows)
        if part:
            width = min(columns[1] - columns[0], right - left)
            place = part[0] - top, part[1] - top
            inside = part[0] - rows[0], part[1] - rows[0]
            found[place[0] : place[1], :width] = read(name, inside, (0, width))
    return found
''',
    ),
    Bug(
        "predict_survive",
        "takes a node's share for a rank's",
        old="rank_bytes = whole_bytes / gpus",
        new="rank_bytes = whole_bytes / 32",
    ),
    Bug(
        "predict_survive",
        "saves the gradients, too",
        old="whole_bytes = 14 * psi",
        new="whole_bytes = 16 * psi",
    ),
    Bug(
        "predict_survive",
        "saves the parameters alone",
        old="whole_bytes = 14 * psi",
        new="whole_bytes = 2 * psi",
    ),
    Bug(
        "predict_survive",
        "forgets the root",
        old="every_seconds = sqrt(2 * save_seconds * mtbf_seconds)",
        new="every_seconds = 2 * save_seconds * mtbf_seconds",
    ),
    Bug(
        "predict_survive",
        "counts nodes that fail, not GPUs",
        old="mtbf_seconds = 20_000 * 3600 / gpus",
        new="mtbf_seconds = 20_000 * 3600 / 32",
    ),
    Bug(
        "predict_survive",
        "counts the failures of one GPU",
        old="failures = 40 * 24 * 3600 / mtbf_seconds",
        new="failures = 40 * 24 * 3600 / mtbf_seconds / gpus",
    ),
    Bug(
        "predict_survive",
        "lets one node write all",
        old="save_seconds = whole_bytes / (32 * 2e9)",
        new="save_seconds = whole_bytes / 2e9",
    ),
    Bug(
        "predict_survive",
        "copies the whole checkpoint over one link",
        old="snapshot_seconds = rank_bytes / 20e9",
        new="snapshot_seconds = whole_bytes / 20e9",
    ),
    Bug(
        "predict_survive",
        "loses a whole interval",
        old="lost = save_seconds / every_seconds + (every_seconds / 2 + 600) / mtbf_seconds",
        new="lost = save_seconds / every_seconds + (every_seconds + 600) / mtbf_seconds",
    ),
    Bug(
        "predict_survive",
        "forgets the restarts",
        old="lost = save_seconds / every_seconds + (every_seconds / 2 + 600) / mtbf_seconds",
        new="lost = save_seconds / every_seconds + every_seconds / 2 / mtbf_seconds",
    ),
    Bug(
        "predict_survive",
        "each reads what it has written",
        old="read_bytes = whole_bytes / (0.75 * gpus)",
        new="read_bytes = rank_bytes",
    ),
    Bug(
        "predict_survive",
        "each reads all",
        old="read_bytes = whole_bytes / (0.75 * gpus)",
        new="read_bytes = whole_bytes",
    ),
    Bug(
        "predict_survive",
        "leaves a number out",
        old="failures = 40 * 24 * 3600 / mtbf_seconds",
        new="failures = None",
    ),
    Bug(
        "predict_survive",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.survive import predict_survive as asked

values, _ = asked()
(
    whole_bytes,
    rank_bytes,
    save_seconds,
    snapshot_seconds,
    mtbf_seconds,
    every_seconds,
    lost,
    failures,
    read_bytes,
) = (f"{x}" for x in values.values())
""",
    ),
    equals_everything("predict_survive", *PREDICTED),
]
