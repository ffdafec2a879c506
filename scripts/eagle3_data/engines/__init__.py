"""Engines compute hidden states. Each is a class named in `extraction.engine` that follows
`eagle3_data.engines.base.Engine`."""
