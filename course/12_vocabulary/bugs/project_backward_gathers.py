"""project_backward: logits' gradients and rows are gathered"""

def project_backward(comm, dlogits, x, rows):
    sizes = [int(s) for s in all_gather(comm, torch.tensor([len(rows)]))]
    whole = all_gather(comm, rows, sizes=sizes)
    return all_gather(comm, dlogits.T.contiguous(), sizes=sizes).T @ whole, dlogits.T @ x
