"""The wrong answers of lesson 22 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS: list[Bug] = []
