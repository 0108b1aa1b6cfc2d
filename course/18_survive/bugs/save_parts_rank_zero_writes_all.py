"""save_parts: rank 0 collects the parts and writes them"""

def save_parts(comm, disk, step, data):
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
