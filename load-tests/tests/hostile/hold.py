"""Holds as many connections as it gets, and opens new ones as soon as one ends.

Arguments: the socket, how many, and a file that is made once all were tried.
"""

import select
import socket
import sys
import time

PATH, WANTED, READY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = []
while True:
    while len(held) < WANTED:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1)
        try:
            connection.connect(PATH)
            connection.sendall(b"GET / HTTP/1.1\r\n")
        except OSError:
            connection.close()
            break
        held.append(connection)
    if READY:
        open(READY, "w").close()
        READY = ""
    poll = select.poll()
    for connection in held:
        poll.register(connection, select.POLLIN)
    ended = {number for number, _ in poll.poll(50)}
    for connection in [one for one in held if one.fileno() in ended]:
        held.remove(connection)
        connection.close()
    time.sleep(0.02)
