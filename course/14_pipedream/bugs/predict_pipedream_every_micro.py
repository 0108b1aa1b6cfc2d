"""predict_pipedream: 2BW updates every micro-batch"""

versions, stale, stash_bytes, vertical_bytes, two_bytes, updates = 6, 5, 3.6e9, 6.4e9, 1.6e9, 600
