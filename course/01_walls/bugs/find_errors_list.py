"""find_errors: a list of letters"""

errors = ["C", "D", "F", "G"]
