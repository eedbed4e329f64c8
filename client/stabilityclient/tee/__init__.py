"""``python -m stabilityclient.tee train.py``: a script as it is, and what it tells other trackers in our run too."""
