"""Calls made up at random, most of which fit what is there, and the keys that sign them."""
import base64
import copy
import datetime
import hashlib
import sys

from chap_coordinator.canonical import canonicalize, content_hash
from sides import Clock

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
                good = content_hash(task.pending_artefact) if task is not None else "sha256:0"
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
