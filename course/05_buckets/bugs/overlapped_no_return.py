"""overlapped: finish is not returned"""

def overlapped(comm, params, buckets):
    missing, works = [len(b) for b in buckets], []

    def start():
        some = [params[i] for i in buckets[len(works)]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            start()

    def finish():
        while len(works) < len(buckets):
            start()
        for work in works:
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    for k, bucket in enumerate(buckets):
        for i in bucket:
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
    finish
