#!/usr/bin/env python3
"""Plays the same calls against the CHAP reference (chap-coordinator, from the package registry) and against
`actors/chap/examples/dispatch.rs`, and compares answers, logs, chain heads and tasks.

Clock and ids are given to both, so that everything must agree to the byte: not only codes and shapes, but entry for
entry and head for head. Where the two differ on purpose, the difference stands in rules.py with its reason, and the
reference is put back to where it was before the call.

    differential.py --dispatch target/debug/examples/dispatch [--sequences 2000] [--seed 1] [--calls 40]

Ends with 1 at the first difference that is not allowed, and prints the seed and the calls that lead there.
"""
import argparse
import copy
import json
import random
import re
import sys
from collections import Counter

from calls import STRANGER, Caller, jwk
from chap_coordinator.patch import PatchError, apply_json_patch
from rules import ALLOWED, ENDS, PARTINGS, Difference, End, code, message, same, unordered
from sides import Clock, Ids, Ours, Theirs, params


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
                if isinstance(envelope, dict) and fits(envelope, ours, before, workspace):
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
