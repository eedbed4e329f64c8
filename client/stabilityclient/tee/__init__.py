"""``python -m stabilityclient.tee train.py``: an unchanged script, its values for other trackers in the run too."""
