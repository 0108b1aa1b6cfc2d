"""The examinations of each lesson's exercises: `lessons/zero.py` has those of ZeRO. `minicheck` makes graders of them."""
