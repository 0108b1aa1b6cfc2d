"""find_errors: 170 billion parameters"""

errors = {"C": 1310.72, "D": 223.52, "G": 67.1}
