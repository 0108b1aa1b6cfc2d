"""find_errors: divided by 16"""

errors = {"C": 1310.72, "D": 223.52, "F": 2794, "G": 4.19}
