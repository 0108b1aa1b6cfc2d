"""Ranks as processes of this machine: started by a server, talking through rings in shared memory."""
