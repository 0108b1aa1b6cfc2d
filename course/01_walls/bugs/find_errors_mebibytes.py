"""find_errors: in MiB again"""

errors = {"C": 1250, "D": 223.52, "F": 2794, "G": 67.1}
