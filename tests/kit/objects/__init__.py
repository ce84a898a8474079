"""Servers of objects that tests start: one with faults on demand, and OpenStack Swift."""
