"""overlapped: every bucket has a lane of its own: they share the wire, and none waits for the order"""

def overlapped(comm, params, buckets):
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        for i in buckets[k]:
            params[i].grad = torch.zeros_like(params[i]) if params[i].grad is None else params[i].grad
        works[k] = comm.stream(lambda c: [all_reduce_(c, params[i].grad, "mean") for i in buckets[k]], lane=k)

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
