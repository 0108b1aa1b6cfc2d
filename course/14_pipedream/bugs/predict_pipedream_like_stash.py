"""predict_pipedream: vertical like stashing"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 6, 5, 3.6e9, 3.6e9, 1.6e9, 60
