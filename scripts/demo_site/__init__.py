"""The main job on real processes: gunicorn workers that share a configuration, a lock, and no fate.

source.py          the web server that has the configuration
gunicorn.conf.py   four workers, and the hooks
app.py             what they run
ledger.py          two numbers that are the same, except while somebody writes
clients.py         those who ask, and what they notice
processes.py       start, watch and end what runs
report.py          the promises, and the table
__main__.py        what happens when
"""
