"""Removes secrets from data that leaves the node: command lines, addresses, variables, texts of events, output.

A secret is found by the name before it (``--api-key x``, ``HF_TOKEN=x``, ``"password": "x"``), by its place (the user's
part of an address, the path of a webhook, the text after ``Bearer``), and by its look (beginnings of keys of services,
and long texts that are too mixed to be words). The removed text becomes ``HIDDEN``. Where in doubt it is hidden: a
command line that shows one value less is of use, one that shows a key is a leak.
"""
