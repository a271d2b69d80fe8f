"""Measures the reference, durable and chained, for `interop/speed`: its rules over its SQLite store, called in this
process, and the same behind the plainest HTTP server there is. Prints one JSON object of calls per second."""
import argparse
import http.server
import json
import os
import tempfile
import threading
import time

from chap_coordinator import Coordinator, CoordinatorOptions
from chap_coordinator.storage.sqlite import SqliteStore


def coordinator(folder):
    return Coordinator(CoordinatorOptions(enable_chain=True, store=SqliteStore(os.path.join(folder, "chap.sqlite"))))


def envelope(method, params):
    return {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}


def workspace(call, name, agent):
    call("workspace.create", {"workspace": name, "profiles": ["core/1.0", "review/1.0"]})
    call("participant.join", {"workspace": name, "from": agent, "type": "agent"})


def write(call, name, agent, number):
    text = "an ordinary piece of work, described in a line or two"
    task = call("task.create", {
        "workspace": name, "from": agent, "assignee": agent, "kind": "draft", "input": {"n": number, "text": text},
    })["task_id"]
    call("task.complete", {
        "workspace": name, "from": agent, "task_id": task, "output": {"text": "what came of it, in a line or two"},
    })
    return task


def sequential(call, rounds):
    workspace(call, "wsp_sequential", "agent:alone")
    began = time.perf_counter()
    for number in range(rounds):
        task = write(call, "wsp_sequential", "agent:alone", number)
        call("audit.read", {"workspace": "wsp_sequential", "from": "agent:alone", "filter": {"task_id": task}})
    return rounds * 3 / (time.perf_counter() - began)


def writers(connect, count, each):
    calls = [connect() for _ in range(count)]
    for number, call in enumerate(calls):
        workspace(call, f"wsp_writer{number}", f"agent:{number}")

    def work(call, number):
        for n in range(each):
            write(call, f"wsp_writer{number}", f"agent:{number}", n)

    threads = [threading.Thread(target=work, args=(call, number)) for number, call in enumerate(calls)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count * each * 2 / (time.perf_counter() - began)


def answered(answer):
    if "error" in answer:
        raise SystemExit(f"refused: {answer['error']}")
    return answer["result"]


def in_process(folder):
    served, lock = coordinator(folder), threading.Lock()

    def call(method, params):
        # It is meant for one caller at a time.
        with lock:
            return answered(served.dispatch(envelope(method, params)))

    return lambda: call


def over_http(folder):
    served, lock = coordinator(folder), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *_):
            pass

        def do_POST(self):
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                answer = served.dispatch(call)
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def serve(folder):
    server = over_http(folder)
    print(server.server_address[1], flush=True)
    threading.Event().wait()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=300)
    arguments.add_argument("--writers", type=int, default=8)
    arguments.add_argument("--each", type=int, default=150)
    arguments.add_argument("--serve", action="store_true", help="serve over HTTP instead, and print the port")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SPEED_DIR")) as folder:
        if given.serve:
            serve(folder)
        connect = in_process(folder)
        rates = {"sequential": sequential(connect(), given.rounds)}
        rates["writers"] = writers(connect, given.writers, given.each)
        print(json.dumps(rates))


main()
