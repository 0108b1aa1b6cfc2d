"""accumulate_overlapped: hooks of another kind are left"""

def accumulate_overlapped(comm, params, backwards, buckets):
    missing, works = [len(b) for b in buckets], []
    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:
            works.append(comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean"))
    for backward in backwards[:-1]:
        backward()
    handles = [params[i].register_post_accumulate_grad_hook(partial(hook, k))
               for k, bucket in enumerate(buckets) for i in bucket]
    for p in params:
        p.register_hook(lambda grad: None)
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
