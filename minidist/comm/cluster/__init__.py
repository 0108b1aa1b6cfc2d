"""What a World stands on: devices, links by level, published machines, stragglers and noise."""

from .cluster import LEVELS, Cluster, Device, Level
