"""Programs that replace servers and foretoken, so that the scripts' tests need no network and no model.

`python3 stand_ins.py server HOW PORT` is a server that answers well, serves another model (other), does not answer at
all (silent), dies in the middle of an answer (dies), reports an error there (fails), ends without an end of its text
(cut), describes its model by something that is no object (list), or has none of the paths (bare). The tests of each are
in test_peers.py.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

VOCABULARY, PARAMETERS = 300, 1000


class Handler(BaseHTTPRequestHandler):
    how = "well"

    def log_message(self, *_):
        pass

    def said(self, body, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def do_GET(self):
        meta = {"n_vocab": VOCABULARY, "n_params": 7 if self.how == "other" else PARAMETERS}
        pages = {"/health": {"status": "ok"}, "/v1/models": {"data": [{"id": "stand-in", "meta": meta}]}}
        if self.how == "bare":
            pages.pop("/v1/models")
        if self.how == "list":
            pages["/v1/models"] = [meta]
        self.said(pages.get(self.path, {}), 200 if self.path in pages else 404)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.said({"tokens": asked["content"].split()})
        self.send_response(200)
        self.end_headers()
        for number in range(asked["max_tokens"]):
            if number == 2 and self.how == "dies":
                self.wfile.flush()
                os._exit(3)
            if number == 2 and self.how == "fails":
                self.wfile.write(b'data: {"error": {"message": "no memory"}}\n\n')
                return
            event = {"choices": [{"text": f"word{number} ", "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if self.how != "cut":
            usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
            for event in ({"choices": [{"text": "", "finish_reason": "length"}]}, {"choices": [], "usage": usage}):
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())


if __name__ == "__main__":
    Handler.how = sys.argv[2]
    if Handler.how == "silent":
        time.sleep(60)
    HTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
