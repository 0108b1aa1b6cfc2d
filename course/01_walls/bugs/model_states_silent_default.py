"""model_states: an unknown optimizer is plain SGD, silently"""

def model_states(trained, frozen, optimizer, precision):
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if precision not in weight:
        raise ValueError(f"no precision is called {precision!r}")
    copy = 4 if precision == "fp16" else 0
    return {"parameters": weight[precision] * (trained + frozen),
            "gradients": weight[precision] * trained,
            "optimizer states": (kept.get(optimizer, 0) + copy) * trained}
