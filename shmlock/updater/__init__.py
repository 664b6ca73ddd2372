"""The updater: a daemon that keeps one `SharedConfig` fresh from a file or a web server.

`python -m shmlock.updater --help` tells how to run it.

    source.py     the contract of a source, and which room serves which URL
    from_file.py  file:
    from_http.py  http: and https:, with urllib3
    schema.py     does a body fit a JSON schema? With jsonschema
    cache.py      the last good body on disk
    trouble.py    what is wrong is logged when it changes
    notify.py     what systemd is told
    daemon.py     take the seat, fetch, judge, publish, wait
    __main__.py   the command line
"""

from shmlock.updater.daemon import Updater
from shmlock.updater.source import Fetched, Source, SourceError, open_source

__all__ = ["Fetched", "Source", "SourceError", "Updater", "open_source"]
