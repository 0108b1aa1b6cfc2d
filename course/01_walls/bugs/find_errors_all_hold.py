"""find_errors: nothing is wrong"""

errors = {}
