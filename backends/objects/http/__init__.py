"""A client of HTTP/1.1 that receives bodies of objects into batches; obstore does all else."""
