"""The observer of a reader: what its threads do, for how long, and warnings when one hangs.

Begin with `meter`, the only module that a reader needs: each has a `Meter` from its opening to its
end. Loaded when asked for, or when a thread hangs: `statistics` (the figures), and of the family
reports `stalls` (the warnings), `reporting` (texts), `signals` (the report by a signal); both use
`kernel` (a thread and a mount in /proc). Imports reading/, runtime/ and contract/.
"""
