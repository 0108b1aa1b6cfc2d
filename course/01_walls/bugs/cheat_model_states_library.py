"""model_states: the library calculates"""

def model_states(trained, frozen, optimizer, precision):
    from minidist.study.memory.states import states

    found = states(trained, optimizer, precision)
    return {"parameters": found.parameters, "gradients": found.gradients, "optimizer states": found.optimizer_states}
