"""Objects of stores and web servers; only this folder uses obstore.

`store` opens, `listing` lists, `pool` distributes the requests of lanes to two engines: `threads`
and `http/`; `errors` and `versions` judge answers, `cache/` keeps samples on a disk. Imports
contract/, runtime/ and files/.
"""
