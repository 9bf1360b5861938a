"""The package without a cluster: a small HTTP server answers as the controller does."""

import asyncio
import concurrent.futures
import http.server
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
# With an installed package, that one is tested.
SOURCES = [] if "TESSERA_TEST_INSTALLED" in os.environ else [str(HERE.parent / "src")]
sys.path[:0] = [*SOURCES, str(HERE)]

import tessera  # noqa: E402
from calls import fail, square  # noqa: E402
from tessera import aio  # noqa: E402
from tessera.executor import run_call  # noqa: E402


class Cluster(http.server.ThreadingHTTPServer):
    """Accepts submits, and runs their commands at once in processes of this machine."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs = {}
        self.requests = []
        self.refuse_times = 0
        self.next = 1
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def submit(self, request):
        first = self.next
        array = request.get("array")
        indexes = range(array["first"], array["last"] + 1) if array else [None]
        for offset, index in enumerate(indexes):
            env = dict(os.environ, **request["env"])
            name = "0" if index is None else str(index)
            if index is not None:
                env["TESSERA_ARRAY_TASK_ID"] = name
            out, err = (open(request[key].replace("%a", name), "w") for key in ("stdout", "stderr"))
            with out, err:
                code = subprocess.call(request["command"], env=env, stdout=out, stderr=err)
            self.jobs[first + offset] = {
                "id": first + offset,
                "submission": first,
                "array_index": index,
                "state": "failed" if code else "succeeded",
            }
        self.next += len(list(indexes))
        return {"job_id": first, "tasks": len(list(indexes)), "state": "queued"}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        if self.server.refuse_times:
            self.server.refuse_times -= 1
            return self.answer(503, {"detail": "not the leader"})
        self.answer(201, self.server.submit(body))

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers), None))
        if self.path == "/v1/events":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b': connected\n\nevent: job\ndata: {"job_id": 7, "state": "running"}\n\n')
            return
        if self.path.startswith("/v1/records"):
            wanted = self.path.split("jobs=")[1].replace("%2C", ",").split(",")
            numbers = {int(word.split("_")[0]) for word in wanted}
            jobs = [job for job in self.server.jobs.values() if job["submission"] in numbers]
            return self.answer(200, {"jobs": jobs, "specs": [], "truncated": False})
        self.answer(404, {"detail": "there is no job 9", "expected": "another number"})


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.server_close)
        self.addCleanup(self.cluster.shutdown)
        self.client = tessera.Client(self.cluster.url, patience=5)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def executor(self, **options):
        pool = tessera.Executor(self.folder / "jobs", client=self.client, poll_secs=0.01, **options)
        self.addCleanup(pool.shutdown)
        return pool

    def test_a_function_runs_as_a_job_and_its_result_comes_back(self):
        future = self.executor(gpu_profile="1g.5gb").submit(square, 7)

        self.assertEqual(future.result(30), 49)
        self.assertEqual(future.stdout(), "squaring 7\n")
        path, headers, body = self.cluster.requests[0]
        self.assertEqual((path, body["gpu_profile"], body["name"]), ("/v1/jobs", "1g.5gb", "square"))
        self.assertTrue(headers["Idempotency-Key"])

    def test_an_exception_of_the_function_is_raised_here(self):
        future = self.executor().submit(fail)

        with self.assertRaisesRegex(ValueError, "no such luck"):
            future.result(30)

    def test_a_job_without_a_result_is_an_error_with_its_last_lines(self):
        future = self.executor().submit(os._exit, 3)

        with self.assertRaisesRegex(tessera.JobError, "failed"):
            future.result(30)

    def test_a_map_is_one_array_in_order(self):
        results = list(self.executor().map(square, [1, 2, 3], timeout=30))

        self.assertEqual(results, [1, 4, 9])
        submits = [body for path, _, body in self.cluster.requests if path == "/v1/jobs"]
        self.assertEqual([body["array"] for body in submits], [{"first": 0, "last": 2}])

    def test_futures_can_be_awaited(self):
        self.assertEqual(asyncio.run(aio.run(self.executor(), square, 5)), 25)

    def test_a_controller_that_is_away_for_a_moment_is_asked_again(self):
        self.cluster.refuse_times = 2

        self.assertEqual(self.executor().submit(square, 2).result(30), 4)
        keys = [headers["Idempotency-Key"] for path, headers, _ in self.cluster.requests if path == "/v1/jobs"]
        self.assertEqual((len(keys), len(set(keys))), (3, 1))

    def test_a_refusal_has_its_reason(self):
        with self.assertRaisesRegex(tessera.Refused, "there is no job 9; expected another number") as refused:
            self.client.get_job(9)
        self.assertEqual(refused.exception.status, 404)

    def test_events_are_yielded_as_they_come(self):
        self.assertEqual(next(self.client.events()), {"job_id": 7, "state": "running"})

    def test_a_token_goes_only_where_it_belongs(self):
        config = self.folder / "config" / "tessera"
        config.mkdir(parents=True)
        kept = config / "credentials.json"
        kept.write_text(json.dumps({"url": "http://other:1", "token": "secret"}))
        kept.chmod(0o600)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ["XDG_CONFIG_HOME"] = str(self.folder / "config")

        with self.assertRaises(tessera.Refused):
            tessera.Client(self.cluster.url).get_job(9)

        self.assertNotIn("Authorization", self.cluster.requests[-1][1])
        kept.chmod(0o644)
        with self.assertRaisesRegex(tessera.TesseraError, "chmod 600"):
            tessera.Client(self.cluster.url)

    def test_a_result_that_cannot_be_pickled_is_an_error_and_not_silence(self):
        own = self.folder / "0"
        own.mkdir()
        import pickle

        (own / "call.pkl").write_bytes(pickle.dumps((threading.Lock, (), {})))
        self.assertEqual(run_call(own), 1)
        good, value = pickle.loads((own / "result.pkl").read_bytes())
        self.assertEqual((good, type(value)), (False, TypeError))


class CheckpointTest(unittest.TestCase):
    def test_the_signal_calls_the_function_once_and_the_program_goes_on(self):
        calls = []
        with tessera.on_checkpoint(lambda: calls.append(1), "SIGUSR2", exit_code=None) as asked:
            self.assertFalse(asked.requested)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGUSR2)

        self.assertEqual((calls, asked.requested), ([1], True))

    def test_the_program_ends_after_its_checkpoint(self):
        code = (
            "import os, signal, tessera\n"
            "with tessera.on_checkpoint(lambda: print('saved')):\n"
            "    os.kill(os.getpid(), signal.SIGUSR1)\n"
            "    print('not reached')\n"
        )
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(SOURCES))
        ran = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, timeout=30)

        self.assertEqual((ran.returncode, ran.stdout), (0, b"saved\n"))


class GeneratedTest(unittest.TestCase):
    def test_the_typed_client_is_that_of_the_description(self):
        spec = importlib.util.spec_from_file_location("generate", HERE.parent / "generate.py")
        generate = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(generate)

        self.assertEqual(generate.TARGET.read_text(), generate.generate(), "run python3 generate.py")


if __name__ == "__main__":
    assert concurrent.futures  # The package's futures are of this module.
    unittest.main()
