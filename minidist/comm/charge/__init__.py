"""What an operation costs: its FLOPs and bytes, its time on a device, the memory that lives after it."""
