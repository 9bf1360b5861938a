"""Attacks on the calls of other users' jobs. Prints each attack that succeeds, and `done`.

Arguments: another user's job, and the sockets of all agents.
"""

import http.client
import os
import socket
import sys

JOB, *SOCKETS = sys.argv[1:]
OWN = os.environ.get("SLURM_JOB_ID", "0")
SESSION = "sessions/00000000-0000-4000-8000-000000000000"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
# Each is what would be the other job's, in any spelling.
PATHS = [
    f"/v1/jobs/{JOB}/{SESSION}",
    f"/v1/jobs/{JOB}/sessions/main",
    f"/v1/jobs/{JOB}_0/sessions/main",
    f"/v1/jobs/%2e%2e/jobs/{JOB}/sessions/main",
    f"/v1/jobs/{OWN}/../{JOB}/sessions/main",
    f"/v1/jobs/{OWN}%2f..%2f{JOB}/sessions/main",
    f"//v1//jobs//{JOB}//sessions//main",
    f"/v1/jobs/{JOB}",
    f"/v1/jobs/{JOB}/logs",
    f"/v1/jobs/{JOB}/cancel",
    "/v1/jobs",
    "/v1/tokens",
    "/v1/whoami",
    "/metrics",
]


def answer(path, method, headers, own):
    """The status of a request by an agent's socket; none if the agent sends the caller away."""
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(own)
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


for agent in SOCKETS:
    for path in PATHS:
        for method in ("GET", "POST", "DELETE"):
            for headers in ({}, UPGRADE, {"Authorization": "Bearer x", **UPGRADE}, {"X-Forwarded-For": "127.0.0.1"}):
                status = answer(path, method, headers, agent)
                if status is not None and status < 400:
                    print("ANSWERED", method, path, status)
print("done")
