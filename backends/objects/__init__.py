"""Objects of stores and web servers; only this folder uses obstore.

In the order to read:

    store        from a URL to the store of a bucket, with `credentials`: `keys` that are renewed,
                 those of `roles` by the network, and those of `google`
    remote       requests before a reader exists
    listing      the objects below a root
    versions     requests for objects, compared with their listed versions
    pool         concurrent requests of all lanes, which are `calls`, at the `pace` of the store
    threads      the engine of obstore: retries and hedging
    errors       obstore's errors as ours, which name its proxy: `proxies`
    hub          the token of Hugging Face's hub, and what its refusals mean
    http/        the other engine: a client of our own
    cache/       samples on a local disk

A backend opens stores and a pool in its constructor, and closes the pool in `close()`, which ends
requests. Imports contract/, runtime/ and files/.
"""
