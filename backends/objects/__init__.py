"""Objects of stores and web servers; only this folder uses obstore.

`store` opens, `listing` lists, `pool` requests with retries and hedging; `errors` and `versions`
judge answers, `cache/` keeps samples on a disk. Imports contract/, runtime/ and files/.
"""
