"""find_errors: MiB are MB"""

errors = {"D": 223.52, "F": 2794, "G": 67.1}
