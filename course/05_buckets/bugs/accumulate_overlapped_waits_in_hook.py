"""accumulate_overlapped: the hook waits: nothing overlaps"""

def accumulate_overlapped(comm, params, backwards, buckets):
    missing, done = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        while len(done) < len(buckets) and missing[len(done)] <= 0:
            all_reduce_(comm, [params[i].grad for i in buckets[len(done)]], "mean")
            done.append(1)

    for backward in backwards[:-1]:
        backward()
    handles = [params[i].register_post_accumulate_grad_hook(partial(hook, k))
               for k, bucket in enumerate(buckets) for i in bucket]
    backwards[-1]()
    for handle in handles:
        handle.remove()
