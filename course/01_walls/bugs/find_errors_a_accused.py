"""find_errors: a claim that holds is said to be wrong"""

errors = {"A": 22.4, "C": 1310.72, "D": 223.52, "F": 2794, "G": 67.1}
