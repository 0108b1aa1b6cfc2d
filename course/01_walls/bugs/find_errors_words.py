"""find_errors: words instead of figures"""

errors = {"C": 1310.72, "D": "GB and GiB are mixed", "F": 2794, "G": 67.1}
