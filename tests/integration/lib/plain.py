#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plain.py PORT FILE: a registry with GET, PUT and DELETE of ?key=KEY alone, stored in FILE."""
import http.server
import json
import os
import sys
import urllib.parse

port, path = int(sys.argv[1]), sys.argv[2]
values = json.load(open(path)) if os.path.exists(path) else {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def key(self):
        return urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["key"][0]

    def save(self):
        with open(path + ".new", "w") as file:
            json.dump(values, file)
        os.replace(path + ".new", path)
        self.answer(200)

    def do_GET(self):
        value = values.get(self.key())
        self.answer(404 if value is None else 200, (value or "").encode())

    def do_PUT(self):
        values[self.key()] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.save()

    def do_DELETE(self):
        values.pop(self.key(), None)
        self.save()

    def log_message(self, *arguments):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
