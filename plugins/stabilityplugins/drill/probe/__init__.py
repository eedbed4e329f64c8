"""The drill's entry on the job's PYTHONPATH: this folder's ``sitecustomize.py``, and the package that it starts."""
