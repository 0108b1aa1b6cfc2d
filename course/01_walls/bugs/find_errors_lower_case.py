"""find_errors: a letter that is not there"""

errors = {"c": 1310.72, "D": 223.52, "F": 2794, "G": 67.1}
