"""Objects of stores and web servers: the only folder that knows obstore."""
