"""The graders of each lesson's exercises: `lessons/zero.py` has those of ZeRO. `predictions` is what several share."""
