"""find_errors: the famous paper is right"""

errors = {"C": 1310.72, "D": 223.52, "F": 2794}
