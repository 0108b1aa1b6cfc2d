"""predict_pipedream: bytes without the newest"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 6, 5, 2.8e9, 6.4e9, 1.6e9, 60
