"""attention: nothing is rescaled"""

def attention(q, k, v, tile):
    out = torch.empty_like(q)
    for first in range(0, len(q), tile):
        qi = q[first : first + tile] * q.shape[1] ** -0.5
        m, s, a = qi.new_full((len(qi), 1), -math.inf), qi.new_zeros(len(qi), 1), torch.zeros_like(qi)
        for kj, vj in zip(k.split(tile), v.split(tile)):
            scores = qi @ kj.T
            peak = torch.maximum(m, scores.amax(1, keepdim=True))
            p, less = (scores - peak).exp(), (m - peak).exp()
            m, s, a = peak, s + p.sum(1, keepdim=True), a + p @ vj
        out[first : first + tile] = a / s
    return out
