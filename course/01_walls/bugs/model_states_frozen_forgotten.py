"""model_states: frozen parameters take no memory"""

def model_states(trained, frozen, optimizer, precision):
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if optimizer not in kept:
        raise ValueError(f"no optimizer is called {optimizer!r}")
    if precision not in weight:
        raise ValueError(f"no precision is called {precision!r}")
    copy = 4 if precision == "fp16" else 0
    return {"parameters": weight[precision] * trained,
            "gradients": weight[precision] * trained,
            "optimizer states": (kept[optimizer] + copy) * trained}
