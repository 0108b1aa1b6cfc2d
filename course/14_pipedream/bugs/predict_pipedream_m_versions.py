"""predict_pipedream: 2BW with m versions"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 6, 5, 3.6e9, 6.4e9, 8e9, 60
