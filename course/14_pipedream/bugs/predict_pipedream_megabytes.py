"""predict_pipedream: megabytes for bytes"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 6, 5, 3600, 6400, 1600, 60
