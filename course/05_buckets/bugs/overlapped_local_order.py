"""overlapped: a bucket starts when it is complete, whatever came before it"""

def overlapped(comm, params, buckets):
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        some = [params[i] for i in buckets[k]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works[k] = comm.stream(all_reduce_, [p.grad for p in some], "mean")

    def hook(k, p):
        missing[k] -= 1
        if missing[k] == 0:
            start(k)

    def finish():
        for k in range(len(buckets)):
            if k not in works:
                start(k)
        for work in works.values():
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    for k, bucket in enumerate(buckets):
        for i in bucket:
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
    return finish
