"""accumulate_overlapped: buckets start as they are complete"""

def accumulate_overlapped(comm, params, backwards, buckets):
    missing, works = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        if missing[k] == 0:
            works.append(comm.stream(all_reduce_, [params[i].grad for i in buckets[k]], "mean"))

    for backward in backwards[:-1]:
        backward()
    handles = [params[i].register_post_accumulate_grad_hook(partial(hook, k))
               for k, bucket in enumerate(buckets) for i in bucket]
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
