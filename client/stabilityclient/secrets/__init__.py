"""Takes secrets out of what leaves the node: command lines, addresses, values of variables, texts of events, output.

A secret is found by the name before it (``--api-key x``, ``HF_TOKEN=x``, ``"password": "x"``), by its place (the user's
part of an address, the path of a webhook, what follows ``Bearer``), and by its look (the well-known beginnings of keys,
and long texts that are too mixed to be words). What is taken out becomes ``HIDDEN``. Where in doubt it is hidden: a
command line that shows one value less is of use, one that shows a key is a leak.
"""
