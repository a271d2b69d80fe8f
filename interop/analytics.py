#!/usr/bin/env python3
"""Reads a live Coordinator of ours with chap-analytics, unchanged from the package registry, and checks what it finds
against what was put there.

    analytics.py http://127.0.0.1:PORT
"""
import json
import sys
import urllib.request

import chap_analytics

WORKSPACE = "wsp_interop"
PERSON, AGENT = "human:rev@example.org", "agent:drafter#v1"


def call(url, method, **params):
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": {"workspace": WORKSPACE, **params}}
    request = urllib.request.Request(
        url + "/chap", json.dumps(body).encode(), {"content-type": "application/chap+json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer = json.load(answer)
    if "error" in answer:
        sys.exit(f"{method}: {answer['error']}")
    return answer["result"]


def story(url):
    """Five reviews: two approvals, two overrides, one rejection."""
    call(url, "workspace.create", profiles=["core/1.0", "review/1.0", "audit-scitt/1.0"])
    for who in (PERSON, AGENT):
        call(url, "participant.join", **{"from": who}, type=who.split(":")[0], role="reviewer")
    for n in range(5):
        task = call(url, "task.create", **{"from": PERSON}, kind="draft", assignee=AGENT, input={"n": n})["task_id"]
        call(url, "review.request", **{"from": AGENT}, task_id=task, to=PERSON, artefact={"text": f"draft {n}"})
        if n < 2:
            call(url, "decide.approve", **{"from": PERSON}, task_id=task)
        elif n < 4:
            diff = [{"op": "replace", "path": "/text", "value": "better"}]
            call(url, "decide.override", **{"from": PERSON}, task_id=task, diff=diff, rationale="clearer",
                 tags=["tone"], intent_preserved=n == 2)
        else:
            call(url, "decide.reject", **{"from": PERSON}, task_id=task, comment="no")


def main():
    url = sys.argv[1].rstrip("/")
    story(url)
    chain = chap_analytics.from_url(url + "/chap", WORKSPACE)
    frames = chap_analytics.frames(chain)
    found = {"events": len(chain.events), "decisions": len(frames.decisions), "overrides": len(frames.overrides)}
    wanted = {"events": 1 + 2 + 5 * 3, "decisions": 5, "overrides": 2}
    if found != wanted:
        sys.exit(f"chap-analytics found {found}, there are {wanted}")
    print(f"chap-analytics read a live Coordinator: {found}")


if __name__ == "__main__":
    main()
