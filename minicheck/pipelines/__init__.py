"""Graders of lesson 13: schedules as lists, a stage that runs one, and what a pipeline costs.

`words` reads an answer's lists; the library's simulator and validator judge them, outside of the answer's process.
"""
