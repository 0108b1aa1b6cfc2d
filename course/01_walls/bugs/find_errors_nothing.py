"""find_errors: nothing is filled in"""

errors = None
