"""A client of HTTP/1.1 that receives bodies of objects into batches; obstore does all else.

In the order to read:

    transport    which requests are for it
    requests     where they go, and their headers; `signatures` of S3, Google and Azure
    traffic      which are sent when, on which connections
    standing     when a server is left to obstore
    redirects    where web servers have their bytes
    pinned       the same before there is a reader, for objects of known sizes
    connections  receive bodies at their destination
    answers      the one kind of answer that is taken
    loop         the thread of all this, which ends before the interpreter does

The pool of a reader makes and closes it. Imports objects/, runtime/ and contract/.
"""
