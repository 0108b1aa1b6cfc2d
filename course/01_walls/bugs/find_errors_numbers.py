"""find_errors: numbers, not bytes"""

errors = {"C": 1310.72, "D": 223.52, "F": 2794, "G": 33.55}
