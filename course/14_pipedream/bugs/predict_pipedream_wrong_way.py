"""predict_pipedream: versions the wrong way round"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 3, 5, 3.6e9, 6.4e9, 1.6e9, 60
