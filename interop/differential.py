#!/usr/bin/env python3
"""Plays the same calls against the CHAP reference (chap-coordinator, from the package registry) and against
`actors/chap/examples/dispatch.rs`, and compares answers, logs, chain heads and tasks.

Clock and ids are given to both, so that everything must agree to the byte: not only codes and shapes, but entry for
entry and head for head. Where the two differ on purpose, the difference stands in ALLOWED with its reason, and the
reference is put back to where it was before the call.

    differential.py --dispatch target/debug/examples/dispatch [--sequences 2000] [--seed 1] [--calls 40]

Ends with 1 at the first difference that is not allowed, and prints the seed and the calls that lead there.
"""
import argparse
import base64
import copy
import datetime
import hashlib
import json
import random
import re
import subprocess
import sys
import types
from collections import Counter

import chap_coordinator.coordinator as reference
from chap_coordinator import Coordinator, CoordinatorOptions
from chap_coordinator.canonical import canonicalize
from chap_coordinator.patch import PatchError, apply_json_patch

# ------------------------------------------------------------------ the reference, with a clock and ids of ours


class Clock:
    millis = 1_790_000_000_000

    @classmethod
    def iso(cls):
        moment = datetime.datetime.fromtimestamp(cls.millis / 1000, tz=datetime.timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


class Now(datetime.datetime):
    """What the reference takes for the time of day in its step-up check."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(Clock.millis / 1000, tz=tz)


reference._dt = types.SimpleNamespace(datetime=Now, timezone=datetime.timezone)

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(millis, bits):
    value = (millis << 80) | (bits & ((1 << 80) - 1))
    return "".join(CROCKFORD[(value >> (5 * place)) & 31] for place in range(25, -1, -1))


class Ids:
    salt = 0
    made = 0

    def _next(self, prefix):
        Ids.made += 1
        return prefix + ulid(Clock.millis, Ids.salt * 1000 + Ids.made)

    def task_id(self):
        return self._next("tsk_")

    def artefact_id(self):
        return self._next("art_")

    def deliberation_id(self):
        return self._next("dlb_")

    def handoff_id(self):
        return self._next("hnd_")

    def workspace_id(self):
        return f"wsp_{Ids.salt:026d}"


def moment(text):
    return round(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


class Theirs:
    def __init__(self, settings):
        self.attested = {}
        options = CoordinatorOptions(
            require_signatures=settings.get("require_signatures", False),
            enforce_step_up=settings.get("enforce_step_up", False),
            require_read_membership=settings.get("require_read_membership", False),
            enable_chain=settings.get("enable_chain", False),
            max_envelope_bytes=settings.get("max_envelope_bytes", 1_048_576),
            verify_oidc_token=(lambda _: self.attested.get("oidc")) if settings.get("verify_oidc") else None,
            verify_vc=(lambda _: self.attested.get("vc")) if settings.get("verify_vc") else None,
        )
        self.coordinator = Coordinator(options)
        self.coordinator.ids = Ids()
        self.coordinator._advance_clock = Clock.iso
        append = self.coordinator._append_entry
        # Our log keeps the digest of a token where theirs keeps the token: so that the chains stay comparable, theirs is
        # given what ours keeps.
        self.coordinator._append_entry = lambda ws, **entry: append(ws, **{k: withheld(v) for k, v in entry.items()})

    def call(self, envelope):
        Ids.made = 0
        return self.coordinator.dispatch(copy.deepcopy(envelope))

    def keep(self):
        self.kept = copy.deepcopy(self.coordinator.workspaces)

    def restore(self):
        self.coordinator.workspaces.clear()
        self.coordinator.workspaces.update(self.kept)

    def lapse(self):
        # Ours fire in the order in which they are due; theirs are made to.
        for workspace in self.coordinator.workspaces.values():
            every = workspace.whispers
            for whisper in sorted(every.values(), key=lambda w: (moment(w.asked_at) + w.deadline_ms, w.id)):
                workspace.whispers = {whisper.id: whisper}
                self.coordinator.check_whisper_lapses(workspace.id)
            workspace.whispers = every


class Ours:
    def __init__(self, program):
        self.child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def line(self, text):
        self.child.stdin.write(text.encode("utf-8", "surrogatepass") + b"\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise SystemExit("dispatch ended")
        return json.loads(answer)

    def control(self, **what):
        self.line(json.dumps({"$" + name: value for name, value in what.items()}))

    def call(self, envelope):
        return self.line(json.dumps(envelope))


# ------------------------------------------------------------------ comparing


def same(a, b):
    """JSON equality: 2.0 is 2, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def unordered(answer):
    """The hints that a routing decision used are listed in no particular order."""
    found = answer.get("result")
    rationale = found.get("rationale") if isinstance(found, dict) else None
    if isinstance(rationale, dict) and isinstance(rationale.get("hints_used"), list):
        rationale["hints_used"] = sorted(rationale["hints_used"])
    return answer


class Difference(Exception):
    pass


# Differences on purpose: name, reason, and whether this one is it. `restore` says what becomes of the reference's own
# state: it is put back, because ours has changed nothing.
def code(answer):
    return answer.get("error", {}).get("code")


def message(answer):
    return answer.get("error", {}).get("message", "")


def params(call):
    found = call.get("params") if isinstance(call, dict) else None
    return found if isinstance(found, dict) else {}


SHAPE = re.compile(
    r"^\S+( must be (an? |shadow|human|any |at most|names|one of|task,)| is not )|^Unknown participant|needs |at most|asked of 1|goes to one")

ALLOWED = [
    # A value of the wrong type, a text that is no URI, mode, type, range or deadline: the reference takes it, ends in an
    # internal error, or looks at it later than we do (digest 4.2, "safe to be strict about").
    ("shape", lambda call, theirs, ours, hostile: hostile and code(ours) == -32602 and SHAPE.search(message(ours))),
    # An internal error of the reference is one of its faults: no input reaches -32603 here.
    ("internal", lambda call, theirs, ours, hostile: code(theirs) == -32603 and code(ours) not in (None, -32603)),
    # The words of these refusals are ours; the codes are the same.
    ("words", lambda call, theirs, ours, hostile: code(theirs) == code(ours) is not None
        and (words(message(theirs), message(ours)) if same(theirs["error"].get("data"), ours["error"].get("data"))
             else False) or hostile and code(theirs) == code(ours) == -32602),
    # An id that is in use is not given to a second object: it would wipe votes, answers and tasks (digest 4.2).
    ("reused id", lambda call, theirs, ours, hostile: code(ours) == -32602 and "result" in theirs
        and call["method"] in ("whisper.ask", "deliberate.open", "handoff.propose") and "in use" in message(ours)),
    # Nor is a key's name given to a second key: the reference would never find the second one.
    ("reused kid", lambda call, theirs, ours, hostile: code(ours) == -32602 and call["method"] == "participant.rotate_key"
        and "has a key" in message(ours)),
    # A handoff passes on what its proposer holds: a task that has gone to somebody else since is not taken from them.
    ("stale handoff", lambda call, theirs, ours, hostile: code(ours) == -32050 and call["method"] == "handoff.accept"),
    # A task's thread holds the handoffs and deliberations that are about it, although they do not name it as `task_id`.
    ("thread of a task", lambda call, theirs, ours, hostile: bool((params(call).get("filter") or {}).get("task_id"))
        and thread(call, theirs, ours)),
    # Deadlines hold at the moment of answering, voting and deciding, not only when a timer has run (digest 4.2).
    ("deadline", lambda call, theirs, ours, hostile: code(ours) in (-32013, -32021, -32032)
        and call["method"].split(".")[0] in ("decide", "abstain", "whisper", "deliberate")),
]



def thread(call, theirs, ours):
    """Whether ours is theirs and more, all of it about a task by way of a handoff or a deliberation."""
    if call.get("method") != "audit.read" or "result" not in theirs or "result" not in ours:
        return False
    known = [entry["seq"] for entry in theirs["result"]["entries"]]
    more = [entry for entry in ours["result"]["entries"] if entry["seq"] not in known]
    kept = [entry for entry in ours["result"]["entries"] if entry["seq"] in known]
    return same(theirs["result"]["entries"], kept) and all(
        (entry.get("envelope") or entry.get("request"))["method"].split(".")[0] in ("handoff", "deliberate") for entry in more)


# Differences after which the two states have nothing more to say to each other: the sequence ends well.
ENDS = [
    # A review whose deadline has passed is over: it may be requested anew, with other content or another rule.
    ("lapsed review requested anew", lambda call, theirs, ours, before: call["method"] == "review.request" and "result" in ours
        and before is not None and before.review is not None and before.review.deadline is not None
        and before.review.deadline <= Clock.iso()),
    # A key is revoked from its first revocation on; in the reference a second one moves the moment, so that signatures
    # between the two become good.
    ("a key revoked again", lambda call, theirs, ours, before: call["method"] == "participant.revoke_key"
        and "result" in ours and "result" in theirs and ours["result"]["revoked_at"] < theirs["result"]["revoked_at"]),
]


# The same answers, after which the two go different ways.
PARTINGS = [
    # Handed in after its review's deadline, a task gets a new review; the reference keeps one nobody can tell the end of.
    ("handed in after a lapsed review", lambda call, ours, before: call["method"] == "task.complete"
        and ours.get("result", {}).get("state") == "review_requested" and before is not None and before.review is not None
        and before.review.deadline is not None and before.review.deadline <= Clock.iso()),
    # Handed in anew, a task's earlier approvals count no more: they were about another artefact (digest 4.3).
    ("handed in anew after approvals", lambda call, ours, before: call["method"] == "task.complete"
        and ours.get("result", {}).get("state") == "review_requested" and before is not None and before.review is not None
        and any(d.get("kind") == "approve" for d in before.review.decisions)),
]


class End(Exception):
    pass


# Pairs of words for one refusal: the reference's beginning, and ours.
WORDS = [
    (r"No verify_scitt_receipt hook", r"This Coordinator keeps no transparency log"),
    (r"CHAP canonical|Non-finite", r"The call has no canonical form"),
    (r"scope must be one of", r"scope must be"),
    (r"new_ceiling must be one of", r"new_ceiling must be"),
    (r"Unsupported review rule", r"Unsupported review rule"),
    (r"A review is already open on this task with different", r"A review with other content"),
    (r"\S+ is advertised but", r"\S+ cannot be advertised"),
    (r"This task requires review\.", r"This task requires review:"),
    (r"Unknown participant: None", r"Unknown participant: none named"),
    (r"Unknown workspace", r"Unknown workspace"),
    (r"Illegal transition", r"Illegal transition"),
    (r"Unknown rule|invalid literal|could not convert|not enough|list index", r"Unknown"),
]


def words(theirs, ours):
    return any(re.match(a, theirs) and re.match(b, ours) for a, b in WORDS)


# ------------------------------------------------------------------ calls

PEOPLE = ["human:ann@e.org", "human:bob@e.org", "human:cy@e.org"]
AGENTS = ["agent:one#v1", "agent:two#v2"]
EVERYBODY = PEOPLE + AGENTS + ["service:mill"]
STRANGER = "human:eve@e.org"
PROFILES = ["core/1.0", "review/1.0", "whisper/1.0", "deliberation/1.0", "handoff/1.0", "control/1.0", "routing/1.0",
            "modes/1.0", "audit-scitt/1.0"]
ODD = [None, True, False, 0, -1, 7, "", "x", "not a uri", [], {}, [1], ["x", 2], {"a": 1}, 2.0]


class Caller:
    """Makes up calls that mostly fit what is there."""

    def __init__(self, rng, theirs, settings):
        self.rng, self.theirs, self.settings, self.number = rng, theirs, settings, 0
        self.workspaces = ["wsp_a", "wsp_b"]
        self.sent = []

    def pick(self, items):
        items = list(items)
        return self.rng.choice(items) if items else None

    def chance(self, p):
        return self.rng.random() < p

    def workspace(self):
        return "wsp_nowhere" if self.chance(0.01) else self.pick(self.workspaces[:1] * 12 + self.workspaces)

    def sender(self):
        return STRANGER if self.chance(0.03) else self.pick(EVERYBODY)

    def state(self, workspace):
        return self.theirs.coordinator.workspaces.get(workspace)

    def task(self, workspace, states=()):
        there = self.state(workspace)
        tasks = list(there.tasks.values()) if there else []
        fit = [t.id for t in tasks if t.state in states]
        if fit and self.chance(0.85):
            return self.pick(fit)
        return self.pick([t.id for t in tasks]) or "tsk_none"

    def artefact(self):
        return self.pick([{"text": "a", "n": 1}, {"text": "b", "list": [1, 2, 3]}, {"kind": "draft", "content": {"x": "y"}},
                          "words", ["a", "b"], {"a": {"b": [0, {"c": None}]}}, {}])

    def diff(self):
        rng = self.rng
        paths = ["", "/text", "/n", "/list/0", "/list/-", "/list/9", "/a/b/1/c", "/a/b/0", "/content/x", "/0", "/-", "/new",
                 "/a/new/deep", "/a~1b", "/__proto__/x", "no-slash", "/list/01", "/text/x", "/é"]
        operations = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            kind = self.pick(["add", "remove", "replace", "copy", "move", "test", "replace", "add", "jump", None])
            operation = {"op": kind, "path": self.pick(paths)}
            if self.chance(0.85):
                operation["value"] = self.pick([1, "z", True, None, {"q": []}, [1], 2.0, "a"])
            if self.chance(0.6):
                operation["from"] = self.pick(paths)
            if self.chance(0.03):
                operation.pop("path")
            operations.append(operation)
        return operations

    def rule(self):
        return self.pick(["any_one_approves", "any_one_approves", "all_approve", "quorum:2", "quorum:1", "quorum:0", "quorum:x",
                          "most"])

    def later(self):
        moment = Clock.millis + self.pick([-5_000, 20_000, 600_000, 86_400_000])
        return datetime.datetime.fromtimestamp(moment / 1000, tz=datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def hints(self):
        return self.pick([{"criticality": self.pick(["low", "medium", "high", "critical", "odd"]),
                           "confidence": self.pick(["0.99", "0.9", "0.65", "0.5", "1", "?", 1])}, {"criticality": "high"}, {}])

    def params(self, method, w, sender):
        c, there = self.chance, self.state(w)
        p = {}
        if method == "workspace.create":
            p["workspace"] = self.pick(["wsp_a", "wsp_b", "wsp_c"]) if c(0.9) else None
            if c(0.7):
                p["profiles"] = self.rng.sample(PROFILES, self.rng.randint(0, len(PROFILES)))
            if c(0.3):
                p["mode"] = self.pick(["shadow", "trial", "production"])
            if c(0.3):
                p["mode_ceiling"] = self.pick(["shadow", "trial", "production"])
            if c(0.2):
                p["step_up_window_sec"] = self.pick([0, 60, 900])
            if c(0.1):
                p["routing_policy_uri"] = "https://e.org/p"
            if c(0.2):
                p["min_acr"] = "gold"
        elif method == "workspace.set_profiles":
            p["profiles"] = PROFILES if c(0.7) else self.rng.sample(PROFILES, self.rng.randint(0, len(PROFILES)))
        elif method == "participant.join":
            p["type"] = sender.split(":")[0]
            if c(0.5):
                p["role"] = self.pick(["admin", "participant", "reviewer", ""])
            if c(0.3):
                p["display_name"] = self.pick(["Ann", ""])
            if c(0.2):
                p["capabilities"] = {"skills": ["x"]}
            if c(0.2):
                p["scopes"] = self.pick([["decide"], []])
            if c(0.6):
                p["jwks"] = {"keys": [jwk(sender, kid) for kid in self.pick([["k1"], ["k1", "k2"], []])]}
            if c(0.3):
                p["oidc_token"] = "token-of-" + sender
            if c(0.2):
                p["vc_presentation"] = {"holder": sender}
        elif method == "task.create":
            p.update(kind=self.pick(["draft", "refund"]), input=self.pick([{"n": 1}, {}, "text", None, [1]]))
            p["assignee" if c(0.8) else "to"] = self.sender()
            if c(0.3):
                p["mode"] = self.pick(["shadow", "trial", "production", "banana", ""])
            if c(0.3):
                p["review_required"] = c(0.7)
            if c(0.4):
                p["routing_hints"] = self.hints()
            if c(0.1):
                p["deadline"] = self.later()
            if c(0.15):
                p["idempotency_key"] = self.pick(["k1", "k2", "k3", ""])
        elif method == "task.update":
            p.update(task_id=self.task(w, ("created", "in_progress")),
                     state=self.pick(["in_progress", "in_progress", "completed", "declined", "cancelled", "paused", "created"]))
            if c(0.2):
                p["progress_note"] = "half"
        elif method == "task.complete":
            p.update(task_id=self.task(w, ("created", "in_progress")))
            if c(0.9):
                p["output"] = self.artefact()
            if c(0.4):
                p["confidence"] = self.pick(["0.82", "1", 1, None])
        elif method == "review.request":
            p.update(task_id=self.task(w, ("in_progress", "created", "completed", "review_requested")), artefact=self.artefact())
            p["to"] = self.pick([self.pick(PEOPLE), PEOPLE[:2], ["workspace:" + w], PEOPLE, ["group:all", PEOPLE[0]], [], self.sender()])
            if c(0.4):
                p["rule"] = self.rule()
            if c(0.2):
                p["deadline"] = self.later()
            if there and c(0.4):
                task = there.tasks.get(p["task_id"])
                if task is not None and task.pending_artefact is not None:
                    p["artefact"] = copy.deepcopy(task.pending_artefact)
        elif method.startswith("decide.") or method == "abstain.declare":
            p.update(task_id=self.task(w, ("review_requested",)))
            task = there.tasks.get(p["task_id"]) if there else None
            if task is not None and task.review is not None and c(0.7):
                named = [r for r in task.review.requested_to if r in EVERYBODY]
                if named:
                    p["from"] = self.pick(named)
            if c(0.3):
                p["tags"] = self.pick([["tone"], [], ["a", "b"]])
            if c(0.4):
                p["comment"] = "so"
            if c(0.15):
                good = reference.content_hash(task.pending_artefact) if task is not None else "sha256:0"
                p["approved_artefact_digest"] = good if c(0.6) else "sha256:00"
            if method == "decide.reject" and c(0.5):
                p["request_revision"] = c(0.7)
            if method == "decide.override":
                p.update(diff=self.diff(), rationale=self.pick(["because", ""]))
                if task is not None and isinstance(task.pending_artefact, dict) and task.pending_artefact and c(0.6):
                    key = self.pick(task.pending_artefact)
                    p["diff"] = [{"op": "replace", "path": "/" + key, "value": self.artefact()}]
                if c(0.3):
                    p.update(policy_refs=["p1"], logical_id="lgl_1", intent_preserved=c(0.5))
            if method == "abstain.declare":
                p["reason"] = "not mine"
                if c(0.5):
                    p["category"] = self.pick(["out_of_scope", ""])
        elif method == "escalate.raise":
            p.update(original_task_id=self.task(w, ("in_progress", "abstained", "review_requested")))
            p["new_task"] = {"kind": "escalated", "assignee": self.sender(), "input": self.pick([{"a": 1}, {}, None, ""])}
            if c(0.3):
                p["new_task"]["mode"] = self.pick(["shadow", "trial", "production", "banana"])
            if c(0.2):
                p["new_task"].pop(self.pick(["kind", "assignee", "input"]))
        elif method == "whisper.ask":
            p.update(to=self.pick([self.sender(), PEOPLE[:2], ["group:all"]]), task_id=self.task(w), question="which?",
                     deadline_ms=self.pick([1000, 60_000, 600_000]), default_if_lapsed=self.pick(["a", None, {"x": 1}]))
            if c(0.6):
                p["options"] = self.pick([[{"id": "a", "label": "A"}, {"id": "b"}], [], [{"id": 1}, {"id": "z"}]])
            if c(0.2):
                p["urgency"] = self.pick(["high", ""])
            if c(0.2):
                p["whisper_id"] = self.pick(["art_w1", "art_w2"])
        elif method == "whisper.answer":
            whispers = list(there.whispers.values()) if there else []
            whisper = self.pick([x for x in whispers if x.state == "pending"] or whispers)
            p["whisper_id"] = whisper.id if whisper and c(0.95) else "art_none"
            if whisper is not None:
                named = [a for a in whisper.askee if a in EVERYBODY]
                if named and c(0.8):
                    p["from"] = self.pick(named)
                if whisper.options:
                    p["answer_option"] = self.pick([self.pick([o.get("id") for o in whisper.options if isinstance(o, dict)]), "nope"])
            if c(0.4):
                p["answer"] = self.pick(["yes", ""])
            if c(0.2):
                p["answer_text"] = "words"
            if c(0.2):
                p["comment"] = "hm"
        elif method == "deliberate.open":
            p.update(rule=self.pick(["any_one_approves", "all_approve", "quorum:2", "weighted_vote:2", "weighted_vote_with_veto:2",
                                     "most", "quorum:x", "weighted_vote:x"]))
            p["to" if c(0.7) else "participants"] = self.pick([PEOPLE, PEOPLE[:2], PEOPLE[0], EVERYBODY])
            if c(0.4):
                p["weights"] = {PEOPLE[0]: 2, PEOPLE[1]: 1}
            if c(0.4):
                p["veto"] = {PEOPLE[0]: True, PEOPLE[1]: False}
            if c(0.3):
                p["question"] = "shall we?"
            if c(0.2):
                p["task_id"] = self.task(w)
            if c(0.2):
                p["deadline"] = self.later()
            if c(0.3):
                p["deliberation_id"] = self.pick(["dlb_1", "dlb_2"])
        elif method.startswith("deliberate."):
            there_are = list(there.deliberations.values()) if there else []
            one = self.pick([d for d in there_are if d.state == "open"] or there_are)
            p["deliberation_id"] = one.id if one and c(0.95) else "dlb_none"
            if method == "deliberate.comment":
                p[self.pick(["comment", "text"])] = "well"
            if method == "deliberate.vote":
                if one is not None and c(0.85):
                    p["from"] = self.pick([v for v in one.participants if v in EVERYBODY]) or sender
                p["vote"] = self.pick(["yea", "yea", "nay", "abstain", "maybe"])
                if c(0.2):
                    p["veto_invoked"] = c(0.7)
                if c(0.1):
                    p["weight"] = 5
        elif method == "handoff.propose":
            task = self.task(w, ("in_progress", "created"))
            known = there.tasks.get(task) if there else None
            if known is not None and c(0.8):
                p["from"] = known.assignee
            p.update(to=self.pick([self.sender(), self.sender(), "group:all"]), tasks=[{"task_id": task, "title": "t"}])
            if there and known is not None and c(0.4):
                p["tasks"] += [{"task_id": t.id, "blockers": ["b"]} for t in there.tasks.values() if t.assignee == known.assignee][:3]
            if c(0.3):
                p.update(summary="s", context_links=["l"])
            if c(0.2):
                p["handoff_id"] = self.pick(["hnd_1", "hnd_2"])
        elif method.startswith("handoff."):
            there_are = list(there.handoffs.values()) if there else []
            one = self.pick([h for h in there_are if h.state == "proposed"] or there_are)
            p["handoff_id"] = one.id if one and c(0.95) else "hnd_none"
            if one is not None and one.recipient in EVERYBODY and c(0.8):
                p["from"] = one.recipient
            if method == "handoff.accept" and one is not None and c(0.3):
                p["accepted_task_ids"] = self.pick([[one.tasks[0].task_id], [], ["tsk_none"], [t.task_id for t in one.tasks]])
            if method == "handoff.decline" and c(0.6):
                p.update(reason="busy", suggested_target=self.sender())
        elif method in ("control.pause", "control.resume"):
            p["scope"] = self.pick(["task"] * 12 + ["participant"] * 3 + ["workspace", "all"] + ["workspace"] * (method == "control.resume"))
            if p["scope"] == "task" and c(0.4):
                p.pop("scope")
            p["task_id"] = self.task(w, ("paused",) if method == "control.resume" else ("in_progress", "created"))
            if c(0.9):
                p[self.pick(["participant_uri", "uri"])] = self.sender()
            if c(0.1):
                p["in_flight_policy"] = "cancel"
        elif method == "control.cancel":
            p["task_id"] = self.task(w, ("in_progress", "created", "paused"))
            if c(0.4):
                p["reason"] = "over"
        elif method == "control.supersede":
            p["task_id"] = self.task(w)
            p["successor_task"] = {"kind": "next", "assignee": self.sender(), "input": self.pick([{"s": 1}, None, {}])}
            if c(0.2):
                p["successor_task"].pop(self.pick(["kind", "assignee", "input"]))
            if c(0.3):
                p["successor_task"]["mode"] = self.pick(["shadow", "trial", "production", "banana"])
            if c(0.3):
                p["successor_task"]["review_required"] = c(0.5)
            if c(0.4):
                p["reason"] = "better"
        elif method == "control.snapshot":
            if c(0.6):
                p["include"] = self.rng.sample(["members", "open_tasks", "mode_ceiling", "policy", "audit", "all", "odd"],
                                               self.rng.randint(0, 5))
            if c(0.3):
                p["label"] = self.pick(["before", ""])
        elif method == "control.rollback":
            snapshots = list(there.snapshots) if there else []
            p[self.pick(["to_snapshot_artefact_id", "snapshot_artefact_id", "snapshot_id"])] = \
                (self.pick(snapshots) if c(0.9) else None) or "art_none"
            if c(0.4):
                p["what_to_restore"] = self.rng.sample(["members", "mode_ceiling", "open_tasks"], self.rng.randint(0, 3))
            if c(0.4):
                p["reason"] = "oops"
        elif method == "control.set_mode_ceiling":
            p[self.pick(["new_ceiling", "mode_ceiling"])] = self.pick(["shadow", "trial", "production", "banana"])
            if c(0.4):
                p["reason"] = "ready"
        elif method == "task.route":
            p.update(task_id=self.task(w), candidates=self.pick([[self.sender(), self.sender()], EVERYBODY, [], [STRANGER], [1, "x"]]))
        elif method == "review.depth":
            p["task_id"] = self.task(w)
            if c(0.5):
                p["artefact_routing_hints"] = self.hints()
        elif method == "escalate.auto":
            p["task_id"] = self.task(w)
            if c(0.7):
                p["default_escalation_target"] = self.pick([self.sender(), "group:bosses"])
        elif method == "participant.rotate_key":
            p.update(old_kid=self.pick(["k1", "k1", "k2", "none"]), new_jwk=jwk(sender, self.pick(["k2", "k3", "k4"])))
        elif method == "participant.revoke_key":
            p.update(target_uri=sender if c(0.6) else self.sender(), kid=self.pick(["k1", "k2", "k3"]))
            if c(0.4):
                p["reason"] = "lost"
        elif method == "audit.read":
            if c(0.5):
                p["range"] = {"from_seq": self.rng.randint(0, 20)}
                if c(0.5):
                    p["range"]["to_seq"] = self.rng.randint(0, 60)
            if c(0.6):
                p["filter"] = self.pick([{"method": "task.create"}, {"from": sender}, {"task_id": self.task(w)},
                                         {"outcome": "refused"}, {"outcome": "accepted"}, {"outcome": "odd"}, {}])
        elif method == "audit.verify_chain":
            if c(0.1):
                p["from_seq"] = 0
        elif method == "audit.verify_receipt":
            p["receipt"] = self.pick([{"a": 1}, "x"])
        return p

    METHODS = (
        "task.create task.create task.create task.create task.update task.update task.complete task.complete review.request "
        "review.request review.request decide.approve decide.approve decide.approve decide.reject decide.override decide.override "
        "abstain.declare escalate.raise whisper.ask whisper.ask whisper.answer whisper.answer deliberate.open deliberate.comment "
        "deliberate.vote deliberate.vote deliberate.vote deliberate.close handoff.propose handoff.accept handoff.decline "
        "control.pause control.resume control.resume control.cancel control.supersede control.snapshot control.rollback "
        "control.set_mode_ceiling task.route review.depth escalate.auto participant.rotate_key participant.revoke_key "
        "participant.join participant.leave workspace.describe workspace.set_profiles workspace.create audit.read "
        "audit.verify_chain audit.verify_receipt nonsense.method"
    ).split()

    # What stops a sequence from getting anywhere when it is called often.
    RARE = ("participant.leave", "workspace.set_profiles", "workspace.create", "control.set_mode_ceiling", "nonsense.method",
            "control.rollback", "participant.revoke_key", "participant.rotate_key")

    def opening(self):
        """A workspace to play in, and its people."""
        profiles = PROFILES if self.chance(0.75) else self.rng.sample(PROFILES, self.rng.randint(3, len(PROFILES)))
        p = {"workspace": "wsp_a", "profiles": profiles}
        if self.chance(0.7):
            p["from"] = PEOPLE[0]
        if self.chance(0.3):
            p["mode"] = self.pick(["shadow", "trial", "production"])
        yield self.envelope("workspace.create", p), False
        for uri in EVERYBODY:
            if self.chance(0.95):
                kid = {"keys": [jwk(uri, "k1")]}
                role = self.pick(["admin", "participant"])
                yield self.envelope("participant.join", {"workspace": "wsp_a", "from": uri, "type": uri.split(":")[0],
                                                         "role": role, "jwks": kid}), False

    def envelope(self, method, params_):
        self.number += 1
        envelope = {"jsonrpc": "2.0", "id": self.pick([f"m{self.number}", self.number]), "method": method, "params": params_}
        sign = 0.95 if self.settings.get("require_signatures") else 0.2
        if self.chance(sign):
            sender = params_.get("from")
            if self.chance(0.6):
                params_["ts"] = Clock.iso()
            if isinstance(sender, str):
                envelope["sig"] = signed(envelope, sender, self.pick(["k1"] * 8 + ["k2", "k3"]))
                if self.chance(0.03):
                    envelope["sig"] = self.pick(["ed25519:k1:AAAA", "odd", "", "ed25519:k1:" + "A" * 86 + "=="])
        return envelope

    def next(self):
        if self.sent and self.chance(0.05):
            return copy.deepcopy(self.pick(self.sent))  # sent again, to the byte
        method = self.pick(self.METHODS)
        while method in self.RARE and self.chance(0.8):
            method = self.pick(self.METHODS)
        workspace, sender = self.workspace(), self.sender()
        p = {"workspace": workspace, "from": sender}
        p.update(self.params(method, workspace, sender))
        if p.get("workspace") is None:
            p.pop("workspace")
        hostile = False
        if self.chance(0.12):
            hostile = True
            key = self.pick(p)
            if self.chance(0.4):
                p.pop(key)
            else:
                p[key] = self.pick(ODD)
            if self.chance(0.1):
                p[self.pick(p)] = self.pick(ODD) if p else None
        envelope = self.envelope(method, p)
        if self.chance(0.02):
            hostile = True
            envelope = self.pick([
                {**envelope, "jsonrpc": "1.0"}, {**envelope, "params": [1]}, {**envelope, "params": None}, {**envelope, "method": 5},
                {**envelope, "id": None}, {**envelope, "x": 1.5}, {**envelope, "x": 2**53}, [envelope], None, 7, "x",
                {**envelope, "params": {**p, "deep": nest(64)}}, {**envelope, "params": {**p, "deep": nest(61)}},
                {**envelope, "sig": 5}, {k: v for k, v in envelope.items() if k != "id"}, {**envelope, "method": ""}])
        if isinstance(envelope, dict):
            self.sent.append((envelope, hostile))
        return envelope, hostile


def nest(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


# ------------------------------------------------------------------ keys

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
except ImportError:
    sys.exit("differential.py needs the package `cryptography` (chap-coordinator[crypto])")

KEYS = {}


def private(uri, kid):
    if (uri, kid) not in KEYS:
        KEYS[uri, kid] = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{uri} {kid}".encode()).digest())
    return KEYS[uri, kid]


def jwk(uri, kid):
    raw = private(uri, kid).public_key().public_bytes_raw()
    return {"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64.urlsafe_b64encode(raw).rstrip(b"=").decode()}


def signed(envelope, uri, kid):
    try:
        data = canonicalize({k: v for k, v in envelope.items() if k != "sig"})
    except (ValueError, TypeError):
        return f"ed25519:{kid}:AAAA"
    return f"ed25519:{kid}:" + base64.b64encode(private(uri, kid).sign(data)).decode()


# ------------------------------------------------------------------ playing


def settings_for(rng):
    flags = {}
    for name, chance in [("enable_chain", 0.3), ("require_signatures", 0.12), ("enforce_step_up", 0.1),
                         ("require_read_membership", 0.2), ("verify_oidc", 0.15), ("verify_vc", 0.15)]:
        if rng.random() < chance:
            flags[name] = True
    if rng.random() < 0.03:
        flags["max_envelope_bytes"] = 600
    flags["commits"] = rng.choice(["always", "reopen", "lazily"])
    return flags


def withheld(call):
    """A call as our log keeps it: with the digest of a token in the token's place."""
    if isinstance(call, dict) and call.get("method") == "participant.join":
        call = copy.deepcopy(call)
        found = params(call)
        for name in ("oidc_token", "vc_presentation"):
            value = found.get(name)
            if value is not None:
                data = value.encode() if isinstance(value, str) else canonicalize(value)
                found[name] = "sha256:" + hashlib.sha256(data).hexdigest()
    return call


class Play:
    def __init__(self, ours, seed, calls, counts):
        self.ours, self.seed, self.calls, self.counts = ours, seed, calls, counts
        self.rng = random.Random(seed)
        self.settings = settings_for(self.rng)
        self.theirs = Theirs(self.settings)
        self.caller = Caller(self.rng, self.theirs, self.settings)
        self.history = []
        Clock.millis = 1_790_000_000_000
        Ids.salt = 0

    def run(self):
        self.ours.control(reset=self.settings)
        for envelope, hostile in self.caller.opening():
            self.one(envelope, hostile)
        for _ in range(self.calls):
            if self.rng.random() < 0.03:
                self.theirs.keep()
                self.theirs.lapse()
                self.ours.control(now=Clock.millis)
                self.ours.control(lapse="whisper")
                self.history.append("lapse")
            Clock.millis += self.rng.choice([0, 1, 250, 1000, 5000, 30_000])
            self.one(*self.caller.next())
        self.compare()

    def one(self, envelope, hostile):
        Ids.salt += 1
        self.ours.control(now=Clock.millis, salt=Ids.salt)
        self.attest(envelope)
        self.theirs.keep()
        theirs = unordered(self.theirs.call(envelope))
        ours = unordered(self.ours.call(envelope))
        self.history.append((envelope, theirs, ours))
        self.counts["calls"] += 1
        if isinstance(envelope, dict) and isinstance(envelope.get("method"), str):
            self.counts["method", envelope["method"]] += 1
            self.counts["result", envelope["method"]] += int("result" in ours)
        if isinstance(envelope, dict) and envelope.get("method") == "participant.join" and "error" in theirs and "error" in ours:
            # The reference keeps the workspace that a refused joining would have created.
            self.theirs.restore()
        found = params(envelope)
        named = found.get("workspace")
        workspace = self.theirs.kept.get(named) if isinstance(named, str) else None
        task = found.get("task_id")
        before = workspace.tasks.get(task) if workspace and isinstance(task, str) else None
        if same(theirs, ours):
            for name, fits in PARTINGS:
                if isinstance(envelope, dict) and fits(envelope, ours, before):
                    self.counts["ended: " + name] += 1
                    raise End
            if "result" in ours and envelope["method"] == "workspace.create" and not params(envelope).get("workspace"):
                # The reference keeps no entry of a creation that leaves the id to it (digest 3.3); ours does.
                coordinator = self.theirs.coordinator
                coordinator._record_audit(coordinator.workspaces[theirs["result"]["workspace"]], envelope)
                self.counts["allowed: creation without an id recorded"] += 1
            return
        for name, fits in ALLOWED:
            if fits(envelope, theirs, ours, hostile):
                self.counts["allowed: " + name] += 1
                self.counts["detail", f"{name}: {envelope.get('method') if isinstance(envelope, dict) else '?'}: "
                            f"theirs {code(theirs) or 'result'} {message(theirs)[:60]!r}, ours {code(ours)} {message(ours)[:70]!r}"] += 1
                if name not in ("words", "thread of a task"):
                    self.settle(envelope, ours)
                return
        found = params(envelope)
        named = [name if isinstance(name, str) else None for name in (found.get("workspace"), found.get("task_id"))]
        workspace = self.theirs.kept.get(named[0])
        before = workspace.tasks.get(named[1]) if workspace else None
        for name, fits in ENDS:
            if fits(envelope, theirs, ours, before):
                self.counts["ended: " + name] += 1
                raise End
        raise Difference(f"theirs {json.dumps(theirs)}\n  ours {json.dumps(ours)}")

    def settle(self, envelope, ours):
        """Ours has refused what theirs has not, or otherwise: theirs goes back, and takes our refusal into its log."""
        self.theirs.restore()
        recorder = self.theirs.coordinator
        recorder._frozen_now = Clock.iso()
        recorder._record_refusal(envelope, ours["error"])
        recorder._frozen_now = None

    def attest(self, envelope):
        if not isinstance(envelope, dict) or envelope.get("method") != "participant.join":
            return
        found, attested = params(envelope), {}
        sender = found.get("from")
        if self.settings.get("verify_oidc") and isinstance(found.get("oidc_token"), str):
            attested["oidc"] = self.rng.choice([
                None, {"sub": "s1", "auth_time": Clock.millis // 1000 - 100, "acr": "gold"},
                {"sub": "s1", "chap_participant_uri": sender, "auth_time": Clock.millis // 1000 - 100},
                {"sub": "s2", "chap_participant_uri": STRANGER},
                {"sub": "s1", "chap_participant_uri": sender, "acr": "gold", "auth_time": Clock.millis // 1000 - 1000,
                 "cnf": {"jwk": jwk(str(sender), "k9")}}])
        if self.settings.get("verify_vc") and isinstance(found.get("vc_presentation"), dict):
            attested["vc"] = self.rng.choice([None, {"holder": "did:a"}, {"id": "did:b", "cnf_jwk": jwk(str(sender), "k8")}])
        self.theirs.attested = attested
        self.ours.control(attested=attested)

    def compare(self):
        for name, workspace in self.theirs.coordinator.workspaces.items():
            dump = self.ours.line(json.dumps({"$dump": name}))
            entries = dump["entries"]
            theirs = [e.to_dict() for e in workspace.audit]
            for a, b in zip(theirs, entries):
                if not same(a, b):
                    raise Difference(f"log of {name}:\ntheirs {json.dumps(a)}\n  ours {json.dumps(b)}")
            if len(theirs) != len(entries):
                raise Difference(f"log of {name}: theirs has {len(theirs)} entries, ours {len(entries)}: "
                                 f"{json.dumps((theirs + [None])[len(entries):][:1])} {json.dumps(entries[len(theirs):][:1])}")
            self.counts["entries compared"] += len(entries)
            described = dump["describe"]
            relaxed, self.theirs.coordinator.options.require_read_membership = \
                self.theirs.coordinator.options.require_read_membership, False
            expected = self.theirs.coordinator._op_workspace_describe({"workspace": name})["result"]
            self.theirs.coordinator.options.require_read_membership = relaxed
            if not same(described, expected):
                raise Difference(f"{name}:\ntheirs {json.dumps(expected)}\n  ours {json.dumps(described)}")
            tasks = {task["id"]: task for task in dump["tasks"]}
            if tasks.keys() != workspace.tasks.keys():
                raise Difference(f"tasks of {name}: {tasks.keys() ^ workspace.tasks.keys()}")
            for task in workspace.tasks.values():
                self.task(tasks[task.id], task)

    def task(self, ours, task):
        theirs = copy.deepcopy(task.to_dict())
        if task.pending_artefact is not None:
            theirs["pending_artefact"] = task.pending_artefact
        # Ours says more of a review (that it has lapsed) and keeps the confidence of an output under review.
        (ours.get("review") or {}).pop("lapsed", None)
        if not same(ours.get("confidence"), theirs.get("confidence")) and task.review is not None:
            ours.pop("confidence", None)
            theirs.pop("confidence", None)
        if not same(ours, theirs):
            keys = [k for k in theirs.keys() | ours.keys() if not same(theirs.get(k, "absent"), ours.get(k, "absent"))]
            raise Difference(f"task {task.id}: " + "; ".join(
                f"{k}: theirs {json.dumps(theirs.get(k, 'absent'))}, ours {json.dumps(ours.get(k, 'absent'))}" for k in keys))
        self.counts["tasks compared"] += 1


def patches(ours, seed, count):
    """JSON Patch by itself: the same documents and patches, the same results or the same words."""
    rng, differ = random.Random(seed), 0
    caller = Caller(rng, None, {})

    def value(depth=0):
        kind = rng.randrange(8 if depth < 3 else 5)
        if kind < 5:
            return rng.choice([None, True, False, 0, 1, -5, "", "a", "\u00e9", 2.0, "long text"])
        if kind == 5:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(["a", "b", "text", "list", "n", "a/b", "m~n", "", "0"]): value(depth + 1) for _ in range(rng.randrange(4))}

    def paths(found, here=""):
        yield here
        children = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
        for key, child in children:
            yield from paths(child, here + "/" + str(key).replace("~", "~0").replace("/", "~1"))

    for _ in range(count):
        document = value()
        known = list(paths(document)) + ["/-", "/new", "/a/new"]
        patch = caller.diff()
        for operation in patch:
            for name in ("path", "from"):
                if name in operation and rng.random() < 0.75:
                    operation[name] = rng.choice(known)
            if rng.random() < 0.3:
                operation["value"] = value()
        try:
            theirs = {"patched": apply_json_patch(document, copy.deepcopy(patch))}
        except PatchError as error:
            theirs = {"refused": str(error)}
        answer = ours.line(json.dumps({"$patch": {"document": document, "patch": patch}}))
        # The reference quotes what is not ASCII in Python's way.
        if not same(theirs, answer) and json.dumps(theirs).replace("\\\\u", "\\u") != json.dumps(answer):
            differ += 1
            print(f"document {json.dumps(document)}\n   patch {json.dumps(patch)}\n  theirs {json.dumps(theirs)}\n    ours {json.dumps(answer)}")
            if differ == 5:
                break
    print(f"{count:9} patches, {differ} differ")
    return differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatch", required=True, help="the example program `dispatch` of choir-chap")
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--calls", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patches", type=int, default=20000)
    parser.add_argument("--without", default="", help="methods to leave out, by the beginnings of their names, with commas")
    parser.add_argument("--details", action="store_true", help="list every allowed difference")
    parser.add_argument("--go-on", action="store_true", help="count differences instead of ending at the first")
    args = parser.parse_args()
    left_out = tuple(name for name in args.without.split(",") if name)
    Caller.METHODS = [method for method in Caller.METHODS if not (left_out and method.startswith(left_out))]
    ours, counts, found = Ours(args.dispatch), Counter(), Counter()
    if patches(ours, args.seed, args.patches):
        return 1
    for seed in range(args.seed, args.seed + args.sequences):
        play = Play(ours, seed, args.calls, counts)
        try:
            play.run()
        except End:
            continue
        except Difference as difference:
            if args.go_on:
                last = play.history[-1]
                method = last[0].get("method") if isinstance(last, tuple) and isinstance(last[0], dict) else "?"
                found[f"{method}: " + re.sub(r"[0-9A-Z]{26}", "…", str(difference))[:600]] += 1
                continue
            print(f"seed {seed}, settings {json.dumps(play.settings)}, after {len(play.history)} calls; the last three:")
            for item in play.history[-3:]:
                print("  ", json.dumps(item[0]) if isinstance(item, tuple) else item)
            print(difference)
            return 1
    for difference, count in found.most_common(25):
        print(f"{count} × {difference}\n")
    for name, count in sorted((name, count) for name, count in counts.items() if isinstance(name, str)):
        print(f"{count:9} {name}")
    for name, count in sorted((name[1], count) for name, count in counts.items() if name[0] == "method"):
        print(f"{count:9} calls of {name}, {counts['result', name]} with a result")
    if args.details:
        for name, count in sorted((name[1], count) for name, count in counts.items() if name[0] == "detail"):
            print(f"{count:9} {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
