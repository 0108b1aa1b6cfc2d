"""find_errors: the sum in GiB"""

errors = {"C": 1310.72, "D": 208.17, "F": 2794, "G": 67.1}
