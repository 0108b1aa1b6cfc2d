"""accumulate_overlapped: each gradient is a bucket of its own"""

def accumulate_overlapped(comm, params, backwards, buckets):
    works = []
    for backward in backwards[:-1]:
        backward()
    handles = [p.register_post_accumulate_grad_hook(
        lambda p: works.append(comm.stream(all_reduce_, p.grad, "mean"))) for p in params]
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
