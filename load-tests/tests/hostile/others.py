"""Attacks on another user's job by the controller's Unix socket. Prints who the caller is, each attack that succeeds,
and `done`.

Arguments: the socket, and the other user's job.
"""

import http.client
import json
import socket
import sys

SOCKET, JOB = sys.argv[1:]
VALUES = {"job": JOB, "session": "main"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(SOCKET)


def answer(method, path, body=None, headers=None):
    connection = Connection("localhost")
    headers = {"Content-Type": "application/json", **(headers or {})}
    connection.request(method, path, body=body, headers=headers)
    response = connection.getresponse()
    status = response.status
    # The answer of an opened session does not end.
    text = b"" if status == 101 else response.read()
    connection.close()
    return status, text


status, who = answer("GET", "/v1/whoami")
who = json.loads(who)
print(who["user"], who["role"], who["proof"])

# Every documented route of a job, by its number.
_, description = answer("GET", "/openapi.json")
tried = 0
for path, methods in json.loads(description)["paths"].items():
    if "{job}" not in path:
        continue
    for method in methods:
        if method not in ("get", "post", "put", "patch", "delete"):
            continue
        body = None if method in ("get", "delete") else '{"nice": 5}' if method == "patch" else "{}"
        headers = UPGRADE if "{session}" in path else {}
        status, _ = answer(method.upper(), path.format(**VALUES), body, headers)
        tried += 1
        if status != 404:
            print(method.upper(), path, status)
        if path.endswith("/requeue") and status == 200:
            # It runs again, and the route that waits for its end would not answer.
            answer("POST", f"/v1/jobs/{JOB}/cancel", "{}")
if tried < 12:
    print("only", tried, "routes were tried")

# Names and rights that are not the caller's own.
for what, method, path, body, allowed in [
    ("submit for another", "POST", "/v1/jobs", {"command": ["true"], "user": "ada"}, {403}),
    ("token of another", "POST", "/v1/tokens", {"name": "mine", "user": "ada", "role": "user"}, {403}),
    ("token of an admin", "POST", "/v1/tokens", {"name": "mine", "role": "admin"}, {403}),
    ("drain", "POST", "/v1/nodes/n1/drain", {"reason": "mine"}, {403}),
    ("revoke", "POST", "/v1/nodes/n1/revoke", {}, {403}),
    ("invite", "POST", "/v1/nodes/mine/invite", {}, {403}),
    ("rotate", "POST", "/v1/authority/rotate", {}, {403}),
    ("audit", "GET", "/v1/audit", None, {403}),
]:
    status, _ = answer(method, path, None if body is None else json.dumps(body))
    if status not in allowed:
        print(what, status)

# The queue shows that the job exists, and nothing that it runs.
_, queue = answer("GET", "/v1/jobs")
if b"hers-alone" in queue:
    print("the queue shows the command")
for path in ("/v1/history", "/v1/decisions", "/v1/kernels", "/v1/jobs?user=ada"):
    _, text = answer("GET", path)
    if b"hers-alone" in text:
        print(path, "shows the command")
print("done")
