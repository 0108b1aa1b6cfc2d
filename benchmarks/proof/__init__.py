"""What each capability must show, in full size: `make proof NAME=foundation`."""
