"""find_errors: GB and GiB added once more"""

errors = {"C": 1310.72, "D": 222.45, "F": 2794, "G": 67.1}
