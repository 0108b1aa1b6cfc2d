"""save_parts: puts the files where no call has written them"""

def save_parts(comm, disk, step, data):
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
