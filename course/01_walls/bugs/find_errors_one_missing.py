"""find_errors: the mixed units are not found"""

errors = {"C": 1310.72, "F": 2794, "G": 67.1}
