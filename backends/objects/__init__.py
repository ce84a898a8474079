"""Objects of stores and web servers; only this folder uses obstore."""
