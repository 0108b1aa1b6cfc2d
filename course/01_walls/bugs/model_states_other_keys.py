"""model_states: a key with another name"""

def model_states(trained, frozen, optimizer, precision):
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if optimizer not in kept:
        raise ValueError(f"no optimizer is called {optimizer!r}")
    if precision not in weight:
        raise ValueError(f"no precision is called {precision!r}")
    copy = 4 if precision == "fp16" else 0
    return {"parameters": weight[precision] * (trained + frozen), "gradients": weight[precision] * trained,
            "optimizer": (kept[optimizer] + copy) * trained}
